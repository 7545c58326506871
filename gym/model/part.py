"""The policy model server's part of a checkpoint: calls under way, fences and the ledger.

Guarantees (design sections 3, 4 and 6): a call's row is in the ledger before the call is
answered; the same call issued again is one call; a call of an older run takes no effect once a
newer run was seen; a run's call that has begun goes on to its end though its caller leaves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym.checkpoint.fences import Fences
from gym.checkpoint.part_files import PartWriter, file_named, read_continuations
from gym.checkpoint.phases import Phases
from gym.model.generation_client import Completion, GenerationEndpoint
from gym.model.ledger import Ledger, Rows, reachable, references, require_chains
from gym.model.ledger_files import (
    INDEX_FILE,
    LEDGER_FILE,
    index_table,
    ledger_table,
    read_index,
    read_ledger,
)
from gym.protocol import (
    Blocker,
    CommitRequest,
    Counts,
    DigestMismatch,
    Holdings,
    Identity,
    IdentityMismatch,
    Kind,
    LedgerRow,
    Mode,
    RequestConflict,
    Role,
    ServerFault,
    StaleAttempt,
    WrittenFile,
    digest_of,
    staging_key,
)
from gym.single_flight import SingleFlight

_CALL_ID = "the model call id"


@dataclass(frozen=True)
class ModelExport:
    """The ledger as it was when the commit began."""

    rows: Rows
    indexes: list[WrittenFile]
    """The agents' indexes of continuations, which need a part of the ledger."""
    writes: bool
    """False for an auxiliary server: it commits without files."""

    def write(self, writer: PartWriter) -> Holdings:
        """Write the rows reachable from the agents' indexes, and the storage that they need."""
        if not self.writes:
            return Holdings()
        roots = [
            root
            for file in self.indexes
            for root in read_continuations(writer.read_reference(file))
        ]
        kept = reachable(self.rows, roots)
        storage = references(kept)
        writer.parquet(LEDGER_FILE, ledger_table(kept))
        writer.parquet(INDEX_FILE, index_table(storage))
        return Holdings(counts=Counts(ledger_rows=len(kept)), storage=storage)


class ModelPart:
    """Calls and ledger of one model server. Used on one event loop.

    Args:
        phases: The server's state machine.
        endpoint: Source of completions.
        role: An auxiliary server (a judge) keeps no ledger and never closes.
    """

    kind = Kind.MODEL

    def __init__(self, phases: Phases, endpoint: GenerationEndpoint, role: Role) -> None:
        self.role: Role | None = role
        self.mode = Mode.EXPORT_RESTORE if role is Role.POLICY else Mode.STATELESS
        self.ledger = Ledger()
        self._phases = phases
        self._endpoint = endpoint
        self._fences = Fences()
        self._calls: SingleFlight[Identity] = SingleFlight(_CALL_ID)

    async def call(self, identity: Identity | None, chat: dict[str, Any]) -> Completion:
        """Serve one model call.

        Args:
            identity: The caller's; a call without identity has waited until the server was open.
            chat: The chat completion request, as it is to be generated.

        Raises:
            CheckpointParked: Admission is closed: the same call is to be issued again.
            StaleAttempt: A newer run of the rollout exists, or came while the call ran.
            IdentityMismatch: The headers are not those of a model call or an inner call.
            RequestConflict: The call id came with another request.
        """
        if identity is None:
            with self._phases.calls.count(None, "model_call"):
                return await self._endpoint.complete(chat, None, None)
        if identity.model_call_id is not None and identity.request_id is None:
            if self.role is not Role.POLICY:
                # It would be staged under the key of the policy's own call.
                raise IdentityMismatch("an auxiliary model server serves inner calls only")
            return await self._policy_call(identity, identity.model_call_id, chat)
        if identity.request_id is not None and identity.model_call_id is None:
            self._admit(identity)
            # Counted, but `prepare` does not wait for it: its step is one of another server.
            with self._phases.calls.count(identity, "inner_call", blocks=False):
                return await self._endpoint.complete(chat, identity, None)
        raise IdentityMismatch("a model call carries either a model call id or a request id")

    async def _policy_call(
        self, identity: Identity, call_id: str, chat: dict[str, Any]
    ) -> Completion:
        self._fences.require_current(identity)
        self._phases.require_open()
        self._admit(identity)
        request_sha256 = digest_of(chat)
        row = self.ledger.row(identity.rollout_id, call_id)
        if row is not None and row.request_sha256 != request_sha256:
            raise RequestConflict(f"{_CALL_ID} came with another body", details=_who(identity))
        return await self._calls.run(
            identity,
            request_sha256,
            lambda: self._generate(identity, call_id, chat, request_sha256),
            during=self._phases.calls.count(identity, "model_call"),
            details=_who(identity),
        )

    def _admit(self, identity: Identity) -> None:
        if self._fences.admit(identity):
            self._end_runs({identity.rollout_id})
        self.ledger.begin_run(identity.rollout_id, identity.attempt)

    async def _generate(
        self, identity: Identity, call_id: str, chat: dict[str, Any], request_sha256: str
    ) -> Completion:
        parent = self.ledger.parent(identity.rollout_id, call_id)
        parent_key = parent.coordinates.key if parent else None
        completion = await self._endpoint.complete(chat, identity, parent_key)
        self._fences.require_current(identity)
        if completion.coordinates is None:
            return completion
        key = staging_key(identity.incarnation, identity.capture_key, call_id)
        if completion.coordinates.key != key:
            raise ServerFault("the coordinates are those of another call")
        self.ledger.add(
            LedgerRow(
                rollout_id=identity.rollout_id,
                attempt_index=identity.attempt,
                capture_key=identity.capture_key,
                incarnation=identity.incarnation,
                model_call_id=call_id,
                parent_model_call_id=parent.model_call_id if parent else None,
                request_sha256=request_sha256,
                coordinates=completion.coordinates,
            )
        )
        return completion

    def _end_runs(self, rollout_ids: Collection[str]) -> None:
        """Drop the ledger rows of these rollouts and end their calls."""
        for identity in self._calls.running:
            if identity.rollout_id in rollout_ids:
                error = StaleAttempt("the run of this model call has ended", details=_who(identity))
                self._calls.cancel(identity, error)
        self.ledger.drop(rollout_ids)

    async def aclose(self) -> None:
        """End the calls under way: the process ends."""
        await self._calls.aclose()
        await self._endpoint.aclose()

    # --- the part (`gym.checkpoint.part.Part`) ------------------------------------------------

    def counts(self) -> Counts:
        """Number of ledger rows."""
        return Counts(ledger_rows=len(self.ledger))

    def blockers(self) -> list[Blocker]:
        """None besides the calls in flight."""
        return []

    def export(self, request: CommitRequest) -> ModelExport:
        """The ledger, and the indexes of continuations that need a part of it."""
        return ModelExport(
            rows=self.ledger.frozen(),
            indexes=request.continuation_indexes,
            writes=self.role is Role.POLICY,
        )

    def read(self, folder: Path, files: list[WrittenFile]) -> list[LedgerRow]:
        """Rows of the ledger file.

        Raises:
            UnsupportedSchema: A file does not parse.
            DigestMismatch: A file is missing, or the two do not fit together.
        """
        if self.role is not Role.POLICY:
            return []
        rows = read_ledger(file_named(folder, files, LEDGER_FILE))
        if read_index(file_named(folder, files, INDEX_FILE)) != references(rows):
            raise DigestMismatch(f"{INDEX_FILE} and {LEDGER_FILE} name different calls")
        require_chains(rows, LEDGER_FILE)
        return rows

    def install(self, loaded: list[LedgerRow]) -> Holdings:
        """Own the rows as runs n+1 and refuse the runs before."""
        owned = self.ledger.install(loaded)
        for row in owned:
            self._fences.raise_to(row.rollout_id, row.attempt_index)
        return Holdings(counts=self.counts(), storage=references(owned))

    def drop(self) -> None:
        """Drop ledger and fences."""
        self._end_runs({identity.rollout_id for identity in self._calls.running})
        self.ledger.clear()
        self._fences.clear()

    def discard(self, rollout_ids: Collection[str]) -> None:
        """Drop the rows of these rollouts; their fences stay."""
        self._end_runs(rollout_ids)

    def forget(self, rollout_ids: Collection[str]) -> None:
        """Drop rows and fences of finished rollouts."""
        self._end_runs(rollout_ids)
        self._fences.forget(rollout_ids)


def _who(identity: Identity) -> dict[str, Any]:
    return {
        "rollout_id": identity.rollout_id,
        "attempt": identity.attempt,
        "model_call_id": identity.model_call_id,
    }
