"""Requests and answers of the RL actors. Pure pydantic: `activities.contract` builds on it.

Guarantees: nothing here holds a conversation, a token or a credential, except `RunResult`,
which never leaves Ray.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gym.protocol import (
    Continuation,
    Counts,
    Kind,
    LedgerRow,
    Mode,
    Phase,
    Role,
    Seconds,
    SessionEntry,
    StorageReference,
    Wire,
    WrittenFile,
)
from gym.protocol.records import BaseUrl, ServerName

JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
SnapshotFolderName = Annotated[str, Field(pattern=r"^snapshot_[0-9]{6,}$")]

RAY_NAMESPACE = "turnpoint"
SINGLE_CONTROLLER = "SingleController"
NEMO_GYM = "NemoGym"
DATA_PLANE_HOST = "DataPlaneHost"
GENERATION = "Generation"


class SaveSettings(Wire):
    """Settings of one save (design section 11)."""

    prepare_timeout_s: Seconds = 300
    commit_timeout_s: Seconds = 300
    cut_timeout_s: Seconds = 300
    publish_timeout_s: Seconds = 600
    lease_s: Seconds = 30
    keep_latest_k: int = Field(default=2, ge=1)


class ServerConfig(Wire):
    """One Gym server as the configuration names it."""

    name: ServerName
    kind: Kind
    url: BaseUrl


def require_distinct(servers: list[ServerConfig]) -> list[ServerConfig]:
    """The servers, each with a name of its own."""
    names = [server.name for server in servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two servers have the name {', '.join(twice)}; each needs its own")
    at: dict[str, list[str]] = {}
    for server in servers:
        at.setdefault(server.url.rstrip("/"), []).append(server.name)
    if shared := [" and ".join(names) for names in at.values() if len(names) > 1]:
        raise ValueError(f"one url under two names: {'; '.join(shared)}; each server has its own")
    return servers


Servers = Annotated[list[ServerConfig], AfterValidator(require_distinct)]
"""A server's name is its folder in a snapshot, and one server answers at a URL: no two of either
are the same."""


class SnapshotPlace(Wire):
    """The folder of a job's snapshots, and the key that their seals are checked with."""

    job_id: JobId
    snapshot_root: Path
    """Absolute; the job's snapshots lie in `<snapshot_root>/<job_id>`."""
    snapshot_key_file: Path | None = None
    """Key of the manifest's HMAC; without it only damage is promised to be found."""

    @property
    def job_folder(self) -> Path:
        """`<snapshot_root>/<job_id>`."""
        return self.snapshot_root / self.job_id


class JobConfig(SnapshotPlace):
    """Configuration that every process of a job has. Credentials are named by file."""

    control_token_file: Path
    servers: Servers
    policy_url: BaseUrl
    """Base URL of vLLM (or of the scripted policy), ending in `/v1`."""
    policy_model: str
    policy_sha256: str = ""
    """Identity of model and tokenizer, for the topology; empty if it is unknown."""
    generation_host: str = "127.0.0.1"
    generation_port: int = Field(ge=1, le=65_535)
    storage_units: int = Field(default=1, ge=1)
    save: SaveSettings = SaveSettings()
    restore_wait_s: Seconds = 120
    data_plane_timeout_s: Seconds = 20
    max_runs: int = Field(default=3, ge=1)


class Workload(Wire):
    """Dataset and size of a job. Saved in `rl/loader.json`; a restore takes it from there."""

    dataset: Path
    """Absolute path of a JSONL file of NeMo Gym rows."""
    generations: int = Field(default=2, ge=1)
    """Rollouts of each prompt."""
    epochs: int = Field(default=1, ge=1)
    max_inflight: int = Field(default=64, ge=1)
    """Rollouts under way at once."""


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
    """RL's own files of a snapshot, and that everybody still held it when they were complete."""

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
