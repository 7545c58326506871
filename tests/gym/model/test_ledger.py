"""Rows of the ledger: written once, chained, reachable from continuations."""

from __future__ import annotations

import pytest

from gym.model.ledger import Ledger, reachable
from gym.protocol import (
    Continuation,
    IdentityMismatch,
    InvalidRequest,
    RequestConflict,
    SessionLost,
)
from tests.gym.ledger_rows import ledger_of, root, row


def test_the_same_row_again_is_one_row_and_another_is_refused() -> None:
    ledger = ledger_of(row(0), row(0))
    assert len(ledger) == 1
    with pytest.raises(RequestConflict):
        ledger.add(row(0, digest="c"))


def test_a_call_follows_the_one_before() -> None:
    ledger = ledger_of(row(0))
    assert ledger.parent("p0_g0", "call-0") is None
    assert ledger.parent("p0_g0", "call-1") == row(0)
    with pytest.raises(IdentityMismatch):
        ledger.parent("p0_g0", "call-2")


def test_only_what_a_continuation_needs_is_kept() -> None:
    rows = ledger_of(row(0), row(1), row(2), row(0, rollout="p1_g0")).frozen()
    assert reachable(rows, [root("call-1")]) == [row(0), row(1)]
    assert reachable(rows, [root(None)]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        root("call-3"),
        root("call-1", attempt=1),
        root("call-1", key="p0_g0-a1"),
    ],
)
def test_an_index_that_the_ledger_does_not_know_is_an_error(wrong: Continuation) -> None:
    with pytest.raises(InvalidRequest) as caught:
        reachable(ledger_of(row(0), row(1)).frozen(), [wrong])
    assert caught.value.details["rollout_id"] == "p0_g0"


def test_restored_rows_belong_to_the_next_run_and_keep_who_made_them() -> None:
    ledger = Ledger()
    owned = ledger.install([row(0), row(1)])
    assert {one.attempt_index for one in owned} == {1}
    assert {one.capture_key for one in owned} == {"p0_g0"}
    assert ledger.manifest("p0_g0-a1").records == owned
    with pytest.raises(SessionLost):
        ledger.manifest("p0_g0")
    assert reachable(ledger.frozen(), [root("call-1", attempt=1)]) == owned


def test_dropped_rollouts_leave_nothing() -> None:
    ledger = ledger_of(row(0), row(0, rollout="p1_g0"))
    ledger.drop(["p0_g0", "unknown"])
    assert len(ledger) == 1
    with pytest.raises(SessionLost):
        ledger.manifest("p0_g0")
