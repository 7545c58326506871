"""Requests and results of the activities of a restore, in the order of the design's section 5."""

from __future__ import annotations

from pydantic import Field

from activities.contract import JobRequest, Timed
from gym.protocol import Seconds, WrittenFile
from gym.protocol.records import OperationId
from rl.messages import (
    ContinuedRollout,
    JoinedServer,
    ServerReport,
    SnapshotFolderName,
    StartAnswer,
)


class ClaimRequest(JobRequest):
    """Request of `claim_job`."""

    workflow_id: str
    run_id: str
    replace: bool = False
    snapshot: str = "latest"
    """The snapshot to restore; if there is none such, the job is left as it is."""


class ClaimResult(Timed):
    """Answer of `claim_job`."""

    incarnation: int
    schedule_was_running: bool
    restore_wait_s: Seconds = 120
    """Seconds that the next activity waits for servers."""
    terminated: list[str] = []
    trashed: list[str] = []


class RestoreStep(JobRequest):
    """Request of `discover_capabilities` and `discard_continuations`; base of the later ones."""

    incarnation: int = Field(ge=1)
    restore_id: OperationId


class ServersResult(Timed):
    """Answer of `restore_checkpoint`, `resume_restored` and `drop_restored`."""

    servers: list[ServerReport]


class DiscoverResult(Timed):
    """Answer of `discover_capabilities`: every server is there and has joined."""

    servers: list[JoinedServer]


class SelectRequest(RestoreStep):
    """Request of `select_snapshot`."""

    snapshot: str
    strict: bool
    servers: list[JoinedServer]
    excluded: list[str] = []
    """Snapshots that this workflow has tried."""
    reasons: list[str] = []
    """The reason why each was not usable, for the error when none is left."""


class SelectResult(Timed):
    """Answer of `select_snapshot`: verified, before anything is loaded."""

    snapshot: SnapshotFolderName
    source_checkpoint_id: OperationId
    source_incarnation: int
    skipped: list[str] = []
    bytes: int
    files: list[WrittenFile]


class LoadRequest(RestoreStep):
    """Request of `load_data_plane` and `start_controller`."""

    snapshot: SnapshotFolderName
    servers: list[JoinedServer]
    files: list[WrittenFile]


class LoadResult(Timed):
    """Answer of `load_data_plane`."""

    rows: int


class PartsRequest(RestoreStep):
    """Request of `restore_checkpoint`."""

    snapshot: SnapshotFolderName
    files: list[WrittenFile]
    source_checkpoint_id: OperationId


class StartResult(StartAnswer, Timed):
    """Answer of `start_controller`: the unfinished rollouts and their new runs."""


class DiscardResult(Timed):
    """Answer of `discard_continuations`: the rollouts that start over, each with its reason."""

    restarted: list[ContinuedRollout]


class OpenRequest(RestoreStep):
    """Request of `resume_restored`; `<k>.from.json` is created before the first resume."""

    snapshot: SnapshotFolderName


class PumpsRequest(RestoreStep):
    """Request of `start_pumps`."""

    schedule_was_running: bool


class PumpsResult(Timed):
    """Answer of `start_pumps`."""

    sent_again: int


class DropRequest(RestoreStep):
    """Request of `drop_restored`: leave nothing of this try."""

    servers: list[JoinedServer]
