"""Requests and answers of the RL actors. Pure pydantic: `activities.contract` builds on it.

Guarantees: nothing here holds a conversation, a token or a credential, except `RunResult`,
which never leaves Ray.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from gym.protocol import (
    Continuation,
    Counts,
    Kind,
    LedgerRow,
    Mode,
    Phase,
    Role,
    SessionEntry,
    StorageReference,
    Wire,
    WrittenFile,
)
from gym.protocol.records import ServerName
from rl.config import JobId, SaveSettings

SnapshotFolderName = Annotated[str, Field(pattern=r"^snapshot_[0-9]{6,}$")]

RAY_NAMESPACE = "turnpoint"
SINGLE_CONTROLLER = "SingleController"
NEMO_GYM = "NemoGym"
DATA_PLANE_HOST = "DataPlaneHost"
GENERATION = "Generation"


class JoinedServer(Wire):
    """One server of the job: where it is, which life of it joined, what it can do."""

    name: ServerName
    kind: Kind
    mode: Mode
    role: Role | None = None
    url: str
    instance_id: str | None
    """Null for a server without the control routes (an unmodified one: `restart_only`)."""
    schema_versions: list[int] = [1]
    phase: Phase | None = None


class ServerReport(Wire):
    """One server's share of one phase."""

    server: ServerName
    kind: Kind
    ms: float
    counts: Counts = Counts()
    bytes: int = 0
    note: str | None = None
    """`unreachable` or `another instance`, where it counts as done without answering."""


class RunRequest(Wire):
    """One run of one rollout, to be sent to the agent."""

    rollout_id: str
    attempt_index: int = Field(ge=0)
    agent: ServerName
    row: dict[str, Any]
    """The dataset row as it is."""


class RunResult(Wire):
    """Result of a finished run; the agent keeps it until it is acknowledged."""

    rollout_id: str
    attempt_index: int
    agent: ServerName
    reward: float
    result_digest: str
    result: bytes
    """The verify answer as the agent wrote it: canonical JSON, of which `result_digest` is the
    sha256."""
    records: list[LedgerRow]
    """The chain of model calls that ended the rollout, oldest first."""
    resource_revisions: dict[str, int | None]


class Inventory(Wire):
    """Runs, sessions and staging rows of the Gym servers, from their commit or restore answers."""

    continuations: dict[str, list[Continuation]]
    """By agent."""
    sessions: dict[str, list[SessionEntry]]
    """By resource server."""
    storage: dict[str, list[StorageReference]]
    """By model server."""
    line_counts: dict[str, int]
    """By agent: runs that its `status` counts as held (parked)."""


class PrepareAnswers(Wire):
    """Every server ready."""

    servers: list[ServerReport]
    parked: int


class CommitAnswers(Wire):
    """Every server's part on disk."""

    servers: list[ServerReport]
    files: list[WrittenFile]
    continuations: int


class Topology(Wire):
    """Properties that a snapshot and the fleet that loads it must share (design section 8)."""

    servers: list[dict[str, Any]]
    """name, kind, mode, role and schema versions of each server, by name."""
    policy_model: str
    policy_sha256: str
    storage_units: int
    semantic: dict[str, Any]
    """Configuration that changes what a rollout means: dataset digest, generations, epochs."""


class BeginAnswer(Wire):
    """The controller agrees to a save, or says why not."""

    agreed: bool
    refusal: str | None = None
    """`unchanged`, `weights_syncing`, `checkpoint_running`, `restore_not_finished`,
    `data_plane_busy`, `no_space`, `server_unfit`, `job_finished`."""
    reason: str | None = None
    details: dict[str, Any] = {}
    """Of the refusal, for a machine."""
    incarnation: int
    folder: str = ""
    """Name of the tmp folder below the job's folder."""
    snapshot: str = ""
    settings: SaveSettings = SaveSettings()


class CutAnswer(Wire):
    """RL's own files of a snapshot; every server still held it when they were complete."""

    files: list[WrittenFile]
    unfinished: int
    finished: int
    rows_put: int = 0
    """Training rows put by the incarnation that saved, up to the cut."""
    topology: Topology
    servers: list[ServerReport]


class ContinuedRollout(Wire):
    """One unfinished rollout after a restore."""

    rollout_id: str
    attempt_index: int
    last_committed_model_call_id: str | None
    """It continues after this call; null: from before its first call."""
    restarted_because: str | None = None


class StartAnswer(Wire):
    """The controller has loaded its own state; nothing is sent yet."""

    unfinished: list[ContinuedRollout]
    finished: int


class JobPhase(StrEnum):
    """State of a job's controller."""

    STARTING = "starting"
    """Made; it refuses everything until it is started, and sends nothing before its pumps."""
    RESTORED = "restored"
    """Loaded from a snapshot; nothing is sent yet."""
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """True if nothing of the job runs any more."""
        return self in (JobPhase.FINISHED, JobPhase.FAILED)


class ControllerStatus(Wire):
    """Status of the job, for `turnpoint status` and the supervisor."""

    job_id: JobId
    incarnation: int
    state: JobPhase
    reason: str | None = None
    admission_open: bool
    checkpoint_id: str | None
    lease_left_s: float | None
    rollouts: int
    """Known to the ledger."""
    rollouts_total: int
    """Number of rollouts of the dataset over all epochs."""
    running: int
    finished: int
    failed: int
    failures: dict[str, int] = {}
    """Failed rollouts by the code of the error that ended their last run, most frequent first."""
    owed: int
    """Acknowledgements owed."""
    rows_put: int = 0
    """Training rows that this incarnation has put; more than rollouts: one was put twice."""
    last_snapshot: str | None
