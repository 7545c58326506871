"""The policy model server's ledger: the order of a rollout's calls, and the keys of their tokens.

Guarantees: a row is written once and never changed except for the run that owns it; calls of a
rollout form one chain, so a continuation needs its call and everything before it. A row has
neither a token nor a message. Used on one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from gym.protocol import (
    Continuation,
    DigestMismatch,
    IdentityMismatch,
    InvalidRequest,
    LedgerRow,
    Manifest,
    RequestConflict,
    SessionLost,
    StorageReference,
    capture_key,
    model_call_id,
)

Rows = dict[str, dict[str, LedgerRow]]
"""Rollout id -> model call id -> row."""


class Ledger:
    """Rows of all unfinished rollouts of one incarnation."""

    def __init__(self) -> None:
        self._rows: Rows = {}
        self._runs: dict[str, str] = {}
        """Capture key of the run that owns the rows now -> rollout id."""

    def __len__(self) -> int:
        """Number of rows."""
        return sum(len(calls) for calls in self._rows.values())

    def begin_run(self, rollout_id: str, attempt: int) -> None:
        """Make `attempt` the run that owns the rollout's rows; idempotent."""
        self._runs.setdefault(capture_key(rollout_id, attempt), rollout_id)

    def row(self, rollout_id: str, call_id: str) -> LedgerRow | None:
        """The row of a call, if it is there."""
        return self._rows.get(rollout_id, {}).get(call_id)

    def parent(self, rollout_id: str, call_id: str) -> LedgerRow | None:
        """The row of the call before.

        Returns:
            The parent's row; None for the first call.

        Raises:
            IdentityMismatch: The call before has no row: it was never answered here.
        """
        index = int(call_id.removeprefix("call-"))
        if index == 0:
            return None
        before = self.row(rollout_id, model_call_id(index - 1))
        if before is None:
            raise IdentityMismatch(
                "a model call came before the one it follows was answered",
                details={"rollout_id": rollout_id, "model_call_id": call_id},
            )
        return before

    def add(self, row: LedgerRow) -> None:
        """Write a row; the same row again changes nothing.

        Raises:
            RequestConflict: The call has another row already.
        """
        calls = self._rows.setdefault(row.rollout_id, {})
        if calls.setdefault(row.model_call_id, row) != row:
            raise RequestConflict(
                "a model call already has another ledger row",
                details={"rollout_id": row.rollout_id, "model_call_id": row.model_call_id},
            )

    def manifest(self, key: str) -> Manifest:
        """All rows that the run with this capture key can reach, oldest first.

        Raises:
            SessionLost: The run made no call here, or has been superseded or forgotten.
        """
        rollout_id = self._runs.get(key)
        if rollout_id is None:
            raise SessionLost("no run with this capture key is in the ledger")
        rows = self._rows.get(rollout_id, {})
        ordered = [rows[model_call_id(index)] for index in range(len(rows))]
        return Manifest(rollout_id=rollout_id, records=ordered)

    def drop(self, rollout_ids: Iterable[str]) -> None:
        """Forget everything about these rollouts, as far as they are known."""
        gone = set(rollout_ids)
        for rollout_id in gone:
            self._rows.pop(rollout_id, None)
        self._runs = {key: owner for key, owner in self._runs.items() if owner not in gone}

    def clear(self) -> None:
        """Forget everything."""
        self._rows, self._runs = {}, {}

    def frozen(self) -> Rows:
        """A copy that later calls do not change (rows themselves are immutable)."""
        return {rollout_id: dict(calls) for rollout_id, calls in self._rows.items()}

    def install(self, rows: Iterable[LedgerRow]) -> list[LedgerRow]:
        """Take restored rows over for the runs after those that own them.

        Returns:
            The rows as they are now: `attempt_index` one higher; `capture_key` and
            `incarnation` stay those of the run that made the call.
        """
        owned = [row.model_copy(update={"attempt_index": row.attempt_index + 1}) for row in rows]
        for row in owned:
            self.begin_run(row.rollout_id, row.attempt_index)
            self.add(row)
        return owned


def reachable(rows: Rows, roots: Iterable[Continuation]) -> list[LedgerRow]:
    """The rows that these continuations need, each rollout's oldest first.

    Raises:
        InvalidRequest: An index names a call that the ledger does not know, or knows as made
            by another run; the rollout and call are named.
    """
    found: list[LedgerRow] = []
    for root in roots:
        chain: list[LedgerRow] = []
        call_id = root.last_committed_model_call_id
        while call_id is not None:
            row = rows.get(root.rollout_id, {}).get(call_id)
            if row is None or row.attempt_index != root.attempt_index:
                raise _unknown(root, call_id)
            chain.append(row)
            call_id = row.parent_model_call_id
        if chain and chain[0].capture_key != root.capture_key:
            raise _unknown(root, chain[0].model_call_id)
        found.extend(reversed(chain))
    return found


def require_chains(rows: Iterable[LedgerRow], file: str) -> None:
    """Raise unless each rollout's rows are its calls 0, 1, ... of one run, each after the last.

    Raises:
        DigestMismatch: They are not; the file is named.
    """
    chains: dict[str, list[LedgerRow]] = {}
    for row in rows:
        chains.setdefault(row.rollout_id, []).append(row)
    for chain in chains.values():
        for number, row in enumerate(chain):
            parent = model_call_id(number - 1) if number else None
            found = (row.model_call_id, row.parent_model_call_id, row.attempt_index)
            if found != (model_call_id(number), parent, chain[0].attempt_index):
                raise DigestMismatch(f"{file} holds a rollout with a gap in its calls")


def references(rows: Iterable[LedgerRow]) -> list[StorageReference]:
    """The token-storage index: the TransferQueue rows that these calls need."""
    return [
        StorageReference(
            rollout_id=row.rollout_id, model_call_id=row.model_call_id, key=row.coordinates.key
        )
        for row in rows
    ]


def _unknown(root: Continuation, call_id: str) -> InvalidRequest:
    return InvalidRequest(
        "a continuation index names a call that the ledger does not know",
        details={
            "rollout_id": root.rollout_id,
            "attempt_index": root.attempt_index,
            "model_call_id": call_id,
        },
    )
