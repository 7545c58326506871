"""Names, workflow inputs and workflow results; the activities' models are in `save` and `restore`.

Guarantees: pure pydantic, so that `workflows/` imports no Ray, httpx or fastapi through it (design
section 3, rooms). A payload holds ids, counts, relative paths and digests, never a conversation, a
token or a credential (design section 9). A new field is optional, so that old histories decode.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gym.protocol import Wire
from gym.protocol.records import OperationId
from rl.config import JobId
from rl.messages import ContinuedRollout as ContinuedRollout
from rl.messages import ServerReport as ServerReport
from rl.messages import SnapshotFolderName

TASK_QUEUE = "turnpoint-snapshots"
WORKFLOW_TYPES = ("SaveSnapshot", "RestoreSnapshot", "PruneSnapshots")
JOB_ATTRIBUTE = "TurnpointJob"
"""Search attribute with the job's id: the id of a workflow can be any that its starter gave."""


def schedule_id(job_id: str) -> str:
    """Id of the one Schedule that starts a job's saves."""
    return f"{job_id}/saves"


def _no_other_meaning(name: str) -> str:
    if name == "latest" or re.fullmatch(r"snapshot_\d+", name):
        raise ValueError("`latest` and `snapshot_<number>` mean something else")
    return name


SnapshotName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), AfterValidator(_no_other_meaning)
]


class JobRequest(Wire):
    """Base of every input and request: they name the job."""

    job_id: JobId


class Timed(Wire):
    """Base of an activity's result."""

    ms: float = 0
    """Milliseconds that the activity took."""


class SaveInput(JobRequest):
    """Input of `SaveSnapshot`, as the Temporal UI and `temporal workflow start` give it."""

    name: SnapshotName | None = None
    """A named snapshot is never pruned and never skipped as unchanged."""
    trigger: Literal["manual", "scheduled"] = "manual"
    """A refusal completes a scheduled save as `skipped` and fails a manual one."""


class SaveOutcome(StrEnum):
    """Outcome of a completed save; a failed one fails its workflow with a typed reason."""

    PUBLISHED = "published"
    SKIPPED = "skipped"


class PhaseReport(Wire):
    """One phase of a save or restore, for the details table and the result."""

    phase: str
    ms: float
    servers: list[ServerReport] = []


class SaveResult(Wire):
    """Result of `SaveSnapshot`."""

    outcome: SaveOutcome
    checkpoint_id: OperationId
    snapshot: SnapshotFolderName | None = None
    reason: str | None = None
    """Reason of a skip, or a cancellation that came after the publish."""
    incarnation: int | None = None
    parked_rollouts: int = 0
    bytes: int = 0
    pause_s: float | None = None
    """From admission closing to admission opening, on the controller's monotonic clock."""
    phases: list[PhaseReport] = []
    resumed: bool = True
    """False if the rollouts were left to the end of their leases after the publish."""
    pruned: list[str] = []


class Progress(Wire):
    """Answer of the query `progress`, of saves and restores."""

    phase: str | None
    """The phase that runs."""
    done: list[PhaseReport]
    incarnation: int | None = None
    """The incarnation that a restore has claimed."""


class RestoreInput(JobRequest):
    """Input of `RestoreSnapshot`."""

    snapshot: SnapshotFolderName | SnapshotName | Literal["latest"] = "latest"
    strict: bool = False
    """Fail instead of taking the next older snapshot."""
    replace: bool = False
    """Stop a job that is alive first."""


class RestoreResult(Wire):
    """Result of `RestoreSnapshot`."""

    restore_id: OperationId
    incarnation: int
    snapshot: SnapshotFolderName
    skipped: list[str] = []
    """Newer snapshots that were not usable, each with its reason."""
    finished_rollouts: int
    continued: list[ContinuedRollout]
    phases: list[PhaseReport] = []


class PruneInput(JobRequest):
    """Input of `PruneSnapshots`."""

    keep_latest_k: int = Field(default=2, ge=1)
    incarnation: int | None = Field(default=None, ge=1)
    other_lines: bool = False


class PruneResult(Wire):
    """Result of `PruneSnapshots` and of its activity."""

    removed: list[str]
    kept: list[str]
