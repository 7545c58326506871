"""Rows of a ledger, and continuations that need them."""

from __future__ import annotations

from gym.model.ledger import Ledger
from gym.protocol import (
    Continuation,
    LedgerRow,
    StagingCoordinates,
    capture_key,
    staging_key,
)


def row(index: int, *, rollout: str = "p0_g0", attempt: int = 0, digest: str = "a") -> LedgerRow:
    key = capture_key(rollout, attempt)
    parent = f"call-{index - 1}" if index else None
    return LedgerRow(
        rollout_id=rollout,
        attempt_index=attempt,
        capture_key=key,
        incarnation=1,
        model_call_id=f"call-{index}",
        parent_model_call_id=parent,
        request_sha256=digest * 64,
        coordinates=StagingCoordinates(
            key=staging_key(1, key, f"call-{index}"),
            prompt_length=10 + index,
            generation_length=3,
            sha256="b" * 64,
            weight_version="v0",
            parent_key=staging_key(1, key, parent) if parent else None,
        ),
    )


def root(call: str | None, *, attempt: int = 0, key: str = "p0_g0") -> Continuation:
    return Continuation(
        rollout_id="p0_g0",
        attempt_index=attempt,
        capture_key=key,
        last_committed_model_call_id=call,
        resource_state_revisions={},
    )


def ledger_of(*rows: LedgerRow) -> Ledger:
    ledger = Ledger()
    for one in rows:
        ledger.begin_run(one.rollout_id, one.attempt_index)
        ledger.add(one)
    return ledger
