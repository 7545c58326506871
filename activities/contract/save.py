"""Requests and results of the activities of a save, in the order of the design's section 4."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from activities.contract import JobRequest, SnapshotName, Timed
from gym.protocol import Seconds, Wire, WrittenFile
from gym.protocol.records import OperationId
from rl.messages import (
    BeginAnswer,
    CommitAnswers,
    CutAnswer,
    PrepareAnswers,
    ServerReport,
    SnapshotFolderName,
    Topology,
)


class CheckpointKey(JobRequest):
    """One checkpoint of one job; the request of `unpublish_snapshot`."""

    checkpoint_id: OperationId


class BeginRequest(CheckpointKey):
    """Request of `begin_checkpoint`. The incarnation is in the answer."""

    name: SnapshotName | None = None


class BeginResult(BeginAnswer, Timed):
    """Answer of `begin_checkpoint`."""


class CheckpointRequest(CheckpointKey):
    """Request of `close_admission` and `prepare_checkpoint`: all that a repeat needs."""

    incarnation: int = Field(ge=1)
    lease_s: Seconds
    deadline: datetime
    """End of the phase, on the workflow's clock."""


class CloseResult(Timed):
    """Answer of `close_admission`."""

    acknowledged: int


class PrepareResult(PrepareAnswers, Timed):
    """Answer of `prepare_checkpoint`; a server that is not ready fails the activity."""


class FolderRequest(CheckpointRequest):
    """Request of `commit_checkpoint` and `cut_rl_state`, which write into the folder."""

    folder: str
    """Name of the folder below the job's folder."""


class CommitResult(CommitAnswers, Timed):
    """Answer of `commit_checkpoint`: every file of every server with its digest."""


class CutResult(CutAnswer, Timed):
    """Answer of `cut_rl_state`."""


class PublishRequest(FolderRequest):
    """Request of `publish_snapshot`."""

    snapshot: SnapshotFolderName
    name: SnapshotName | None = None
    files: list[WrittenFile]
    topology: Topology
    counts: dict[str, int] = {}


class DiskAnswer(Wire):
    """Base of what the disk says of one checkpoint: published, and as which snapshot."""

    published: bool
    snapshot: str | None = None
    bytes: int = 0


class PublishResult(DiskAnswer, Timed):
    """Answer of `publish_snapshot`."""


class UnpublishResult(DiskAnswer):
    """Answer of `unpublish_snapshot`: the folder renamed away, or the publish that had won."""

    trashed: list[str] = []


class ResumeRequest(CheckpointKey):
    """Request of `resume_checkpoint`, after a publish and as the compensation alike."""

    incarnation: int | None = Field(default=None, ge=1)
    """Null if the answer of `begin_checkpoint` was lost: the id alone is enough."""
    published: SnapshotFolderName | None = None


class ResumeResult(Timed):
    """Answer of `resume_checkpoint`."""

    servers: list[ServerReport]
    pause_s: float | None
    note: str | None = None
    """The participants that were not reached; they open when their lease ends."""
