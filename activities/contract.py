"""What workflows and activities say to each other: names, requests, results.

Pure pydantic, so that `workflows/` imports no Ray, httpx or fastapi through it (design section
3, rooms). One request and one result model for each activity; a new field is optional, so old
histories still decode. Payloads hold ids, counts, relative paths and digests: never a
conversation, a token or a credential (design section 9).
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gym.protocol import Seconds, WrittenFile
from gym.protocol import Wire as Payload
from gym.protocol.records import OperationId
from rl.messages import (
    BeginAnswer,
    CutAnswer,
    JobId,
    JoinedServer,
    ServerReport,
    SnapshotFolder,
    Topology,
)
from rl.messages import (
    ContinuedRollout as ContinuedRollout,
)

TASK_QUEUE = "turnpoint-snapshots"
WORKFLOW_TYPES = ("SaveSnapshot", "RestoreSnapshot", "PruneSnapshots")
JOB_ATTRIBUTE = "TurnpointJob"
"""Search attribute that says whose a workflow is, whatever id somebody has given it."""


def schedule_id(job_id: str) -> str:
    """Id of the one Schedule that proposes a job's saves."""
    return f"{job_id}/saves"


def _no_other_meaning(name: str) -> str:
    if name == "latest" or re.fullmatch(r"snapshot_\d+", name):
        raise ValueError("`latest` and `snapshot_<number>` mean something else")
    return name


SnapshotName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), AfterValidator(_no_other_meaning)
]


# --- workflow inputs and results -------------------------------------------------------------


class SaveInput(Payload):
    """Input of `SaveSnapshot`, as the Temporal UI and `temporal workflow start` give it."""

    job_id: JobId
    name: SnapshotName | None = None
    """A named snapshot is never pruned and never skipped as unchanged."""
    trigger: Literal["manual", "scheduled"] = "manual"
    """A refusal completes a scheduled save as `skipped` and fails a manual one."""


class SaveOutcome(StrEnum):
    """How a completed save ended; a failed one fails its workflow with a typed reason."""

    PUBLISHED = "published"
    SKIPPED = "skipped"


class PhaseReport(Payload):
    """One phase of a save or restore, for the details table and the result."""

    phase: str
    ms: float
    servers: list[ServerReport] = []


class SaveResult(Payload):
    """Result of `SaveSnapshot`."""

    outcome: SaveOutcome
    checkpoint_id: OperationId
    snapshot: SnapshotFolder | None = None
    reason: str | None = None
    """Why it was skipped, or what happened after publishing (a cancellation that came late)."""
    incarnation: int | None = None
    parked_rollouts: int = 0
    bytes: int = 0
    pause_s: float | None = None
    """From admission closing to admission opening, on the controller's monotonic clock."""
    phases: list[PhaseReport] = []
    resumed: bool = True
    """False if the rollouts were left to the end of their leases after the publish."""
    pruned: list[str] = []


class Progress(Payload):
    """Answer of the query `progress`, of saves and restores."""

    phase: str | None
    """The one that runs."""
    done: list[PhaseReport]
    incarnation: int | None = None
    """Of a restore: the one that it has claimed."""


class RestoreInput(Payload):
    """Input of `RestoreSnapshot`."""

    job_id: JobId
    snapshot: SnapshotFolder | SnapshotName | Literal["latest"] = "latest"
    strict: bool = False
    """Fail instead of taking the next older snapshot."""
    replace: bool = False
    """Stop a job that is alive first."""


class RestoreResult(Payload):
    """Result of `RestoreSnapshot`."""

    restore_id: OperationId
    incarnation: int
    snapshot: SnapshotFolder
    skipped: list[str] = []
    """Newer snapshots that were not usable, each with its reason."""
    finished_rollouts: int
    continued: list[ContinuedRollout]
    phases: list[PhaseReport] = []


class PruneInput(Payload):
    """Input of `PruneSnapshots`."""

    job_id: JobId
    keep_latest_k: int = Field(default=2, ge=1)
    incarnation: int | None = Field(default=None, ge=1)
    other_lines: bool = False


class PruneResult(Payload):
    """Result of `PruneSnapshots` and of its activity."""

    removed: list[str]
    kept: list[str]


# --- activities of a save ---------------------------------------------------------------------


class BeginRequest(Payload):
    """Request of `begin_checkpoint`. It carries no incarnation: the answer tells it."""

    job_id: JobId
    checkpoint_id: OperationId
    name: SnapshotName | None = None


class BeginResult(BeginAnswer):
    """Answer of `begin_checkpoint`: the controller's, with its milliseconds."""

    ms: float = 0


class CheckpointRequest(Payload):
    """Base of every later activity of a save: carries all that a repeat needs."""

    job_id: JobId
    checkpoint_id: OperationId
    incarnation: int = Field(ge=1)
    lease_s: Seconds
    deadline: datetime
    """Absolute, on the workflow's clock."""


class CloseAdmissionRequest(CheckpointRequest):
    """Request of `close_admission`."""


class CloseAdmissionResult(Payload):
    """Answer of `close_admission`."""

    acknowledged: int
    ms: float


class PrepareCheckpointRequest(CheckpointRequest):
    """Request of `prepare_checkpoint`."""


class PrepareCheckpointResult(Payload):
    """Answer of `prepare_checkpoint`; a server that is not ready fails the activity."""

    servers: list[ServerReport]
    parked: int
    ms: float


class CommitCheckpointRequest(CheckpointRequest):
    """Request of `commit_checkpoint`."""

    folder: str


class CommitCheckpointResult(Payload):
    """Answer of `commit_checkpoint`: every file of every server with its digest."""

    servers: list[ServerReport]
    files: list[WrittenFile]
    continuations: int
    ms: float


class CutRequest(CheckpointRequest):
    """Request of `cut_rl_state`."""

    folder: str


class CutResult(CutAnswer):
    """Answer of `cut_rl_state`: the controller's, with its milliseconds."""

    ms: float = 0


class PublishRequest(CheckpointRequest):
    """Request of `publish_snapshot`."""

    folder: str
    snapshot: SnapshotFolder
    name: SnapshotName | None = None
    files: list[WrittenFile]
    topology: Topology
    counts: dict[str, int] = {}


class PublishResult(Payload):
    """Answer of `publish_snapshot`."""

    published: bool
    snapshot: str | None = None
    bytes: int = 0
    ms: float = 0


class ResumeCheckpointRequest(Payload):
    """Request of `resume_checkpoint`, after a publish and as the compensation alike."""

    job_id: JobId
    checkpoint_id: OperationId
    incarnation: int | None = Field(default=None, ge=1)
    """Null where `begin_checkpoint` was never heard of again: the id alone is enough."""
    published: SnapshotFolder | None = None


class ResumeCheckpointResult(Payload):
    """Answer of `resume_checkpoint`."""

    servers: list[ServerReport]
    pause_s: float | None
    ms: float
    note: str | None = None
    """What could not be reached; its lease opens it."""


class AskDiskRequest(Payload):
    """Request of `unpublish_snapshot`: about one checkpoint id."""

    job_id: JobId
    checkpoint_id: OperationId


class UnpublishResult(Payload):
    """Answer of `unpublish_snapshot`: the folder renamed away, or the publish that had won."""

    published: bool
    snapshot: str | None = None
    bytes: int = 0
    trashed: list[str] = []


# --- activities of a restore ------------------------------------------------------------------


class ClaimRequest(Payload):
    """Request of `claim_job`."""

    job_id: JobId
    workflow_id: str
    run_id: str
    replace: bool = False
    snapshot: str = "latest"
    """What is wanted: if there is none such, nothing is touched."""


class ClaimResult(Payload):
    """Answer of `claim_job`."""

    incarnation: int
    schedule_was_running: bool
    restore_wait_s: Seconds = 120
    """How long the next activity waits for servers."""
    terminated: list[str] = []
    trashed: list[str] = []
    ms: float = 0


class RestoreStep(Payload):
    """Base of every later activity of a restore."""

    job_id: JobId
    incarnation: int = Field(ge=1)
    restore_id: OperationId


class DiscoverRequest(RestoreStep):
    """Request of `discover_capabilities`."""


class DiscoverResult(Payload):
    """Answer of `discover_capabilities`: every server there and joined."""

    servers: list[JoinedServer]
    ms: float


class SelectRequest(RestoreStep):
    """Request of `select_snapshot`."""

    snapshot: str
    strict: bool
    servers: list[JoinedServer]
    excluded: list[str] = []
    """Snapshots tried by this workflow already."""
    reasons: list[str] = []
    """Why, for the error when none is left."""


class SelectResult(Payload):
    """Answer of `select_snapshot`: verified, before anything is loaded."""

    snapshot: SnapshotFolder
    source_checkpoint_id: OperationId
    source_incarnation: int
    skipped: list[str] = []
    bytes: int
    files: list[WrittenFile]
    ms: float


class LoadDataPlaneRequest(RestoreStep):
    """Request of `load_data_plane`."""

    snapshot: SnapshotFolder
    servers: list[JoinedServer]
    files: list[WrittenFile]


class LoadDataPlaneResult(Payload):
    """Answer of `load_data_plane`."""

    rows: int
    ms: float


class RestoreCheckpointRequest(RestoreStep):
    """Request of `restore_checkpoint`."""

    snapshot: SnapshotFolder
    source_checkpoint_id: OperationId
    files: list[WrittenFile]


class RestoreCheckpointResult(Payload):
    """Answer of `restore_checkpoint`."""

    servers: list[ServerReport]
    ms: float


class StartControllerRequest(RestoreStep):
    """Request of `start_controller`."""

    snapshot: SnapshotFolder
    servers: list[JoinedServer]
    files: list[WrittenFile]


class StartControllerResult(Payload):
    """Answer of `start_controller`: the unfinished rollouts and their new runs."""

    unfinished: list[ContinuedRollout]
    finished: int
    ms: float


class DiscardContinuationsRequest(RestoreStep):
    """Request of `discard_continuations`."""


class DiscardContinuationsResult(Payload):
    """Answer of `discard_continuations`: who starts over and why."""

    restarted: list[ContinuedRollout]
    ms: float


class ResumeRestoredRequest(RestoreStep):
    """Request of `resume_restored`; `<k>.from.json` is created before the first resume."""

    snapshot: SnapshotFolder


class ResumeRestoredResult(Payload):
    """Answer of `resume_restored`."""

    servers: list[ServerReport]
    ms: float


class StartPumpsRequest(RestoreStep):
    """Request of `start_pumps`."""

    schedule_was_running: bool


class StartPumpsResult(Payload):
    """Answer of `start_pumps`."""

    sent_again: int
    ms: float


class DropRestoredRequest(RestoreStep):
    """Request of `drop_restored`: leave nothing of this try."""

    servers: list[JoinedServer]


class DropRestoredResult(Payload):
    """Answer of `drop_restored`."""

    servers: list[ServerReport]
    ms: float
