"""Messages of the control routes below `/checkpoint/v1` (design section 6).

Guarantees: unknown fields are refused on both sides; budgets and leases are seconds counted
from the arrival of the call, so clocks need not agree. Lists of blockers hold at most 100.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gym.protocol.identity import RolloutId
from gym.protocol.records import (
    SCHEMA_VERSION,
    Continuation,
    Kind,
    Mode,
    OperationId,
    Phase,
    Role,
    ServerName,
    SessionEntry,
    Sha256,
    StorageReference,
    Wire,
    WrittenFile,
)

BASE_PATH = "/checkpoint/v1"
MAX_BLOCKERS = 100
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
"""A duration of a day at most."""


class Blocker(Wire):
    """One thing that keeps a server from being ready: its rollout, its place and its age."""

    rollout_id: str | None
    attempt_index: int | None = None
    where: str
    """`model_call`, `tool`, `seed`, `verify`, `result` (not acknowledged), `writer`, ..."""
    age_s: float = Field(ge=0)


class Counts(Wire):
    """Counts of the state in a server."""

    running: int = Field(default=0, ge=0)
    """Runs between two boundaries."""
    parked: int = Field(default=0, ge=0)
    """Runs that stand at a boundary, and restored records not sent again yet."""
    in_flight: int = Field(default=0, ge=0)
    """Data-plane calls admitted and not answered."""
    unacknowledged: int = Field(default=0, ge=0)
    """Finished results not acknowledged."""
    sessions: int = Field(default=0, ge=0)
    ledger_rows: int = Field(default=0, ge=0)


class Holdings(Wire):
    """Inventory of the state that a server wrote or restored; RL compares its ledger with it."""

    counts: Counts = Counts()
    continuations: list[Continuation] = []
    sessions: list[SessionEntry] = []
    storage: list[StorageReference] = []


class JoinRequest(Wire):
    """`POST join`: the server becomes part of a job's incarnation."""

    schema_version: Literal[1] = SCHEMA_VERSION
    job_id: OperationId
    incarnation: int = Field(ge=1)


class StatusRequest(Wire):
    """`GET status`: as query parameters."""

    incarnation: int = Field(ge=1)
    instance_id: OperationId


class ControlRequest(StatusRequest):
    """Base of every control request but `capabilities` and `join`."""

    schema_version: Literal[1] = SCHEMA_VERSION


class PrepareRequest(ControlRequest):
    """`POST prepare`: close admission and wait for turn boundaries, `budget_s` at most."""

    checkpoint_id: OperationId
    budget_s: Seconds
    lease_s: Seconds


class RenewRequest(ControlRequest):
    """`POST renew`: extend the lease to `lease_s` from now, if this id owns the server."""

    checkpoint_id: OperationId
    lease_s: Seconds


class CommitRequest(ControlRequest):
    """`POST commit`: write this server's part below `<folder>/gym/<server>/`."""

    checkpoint_id: OperationId
    budget_s: Seconds
    folder: str
    """The checkpoint folder, absolute."""
    continuation_indexes: list[WrittenFile] = []
    """For model servers: the agents' indexes; paths relative to `folder`."""


class ResumeRequest(ControlRequest):
    """`POST resume`: open again; also the abort. Always answered."""

    checkpoint_id: OperationId


class RestoreRequest(ControlRequest):
    """`POST restore`: load this server's part, all or nothing; stays closed."""

    restore_id: OperationId
    source_checkpoint_id: OperationId
    folder: str
    files: list[WrittenFile]
    """The files of this server as the manifest has them; paths relative to `folder`."""


class ResetRequest(ControlRequest):
    """`POST reset`: drop everything restored, back to awaiting."""

    restore_id: OperationId


class DiscardRequest(ControlRequest):
    """`POST discard`: forget what was restored of these rollouts; run n+1 stays admissible."""

    restore_id: OperationId
    rollout_ids: list[RolloutId]


class AcknowledgeRequest(ControlRequest):
    """`POST acknowledge`: RL keeps this finished result now; the agent may release it."""

    rollout_id: RolloutId
    attempt_index: int = Field(ge=0)
    result_digest: Sha256


class ForgetRequest(ControlRequest):
    """`POST forget`: drop fences and receipts of rollouts that are finished for good."""

    rollout_ids: list[RolloutId]


class Answer(Wire):
    """Base of every answer: the server, its process and its phase."""

    schema_version: Literal[1] = SCHEMA_VERSION
    server: ServerName
    instance_id: OperationId
    incarnation: int | None
    phase: Phase


class Capabilities(Answer):
    """Answer of `GET capabilities`."""

    kind: Kind
    mode: Mode
    role: Role | None = None
    schema_versions: list[int] = [SCHEMA_VERSION]
    worker_processes: int = Field(default=1, ge=1)


class Status(Answer):
    """Answer of `GET status`."""

    checkpoint_id: str | None
    """The checkpoint or restore id that owns the server."""
    lease_left_s: float | None
    counts: Counts
    blockers: list[Blocker]
    blocker_count: int = Field(ge=0)


class PrepareAnswer(Answer):
    """Answer of `POST prepare`: ready, or the blockers; admission is closed either way."""

    ready: bool
    counts: Counts
    blockers: list[Blocker]
    blocker_count: int = Field(ge=0)


class RenewAnswer(Answer):
    """Answer of `POST renew`."""

    held: bool
    """True if the id owns the server, so that its lease was extended."""
    lease_left_s: float | None


class CommitAnswer(Answer, Holdings):
    """Answer of `POST commit`: the files, and what is in them."""

    files: list[WrittenFile]
    counts: Counts


class ResumeAnswer(Answer):
    """Answer of `POST resume`."""

    checkpoint_id: str | None
    """Another id that owns the server, if there is one."""


class RestoreAnswer(Answer, Holdings):
    """Answer of `POST restore`: what is restored, under the runs n+1 it was restored as."""

    counts: Counts
