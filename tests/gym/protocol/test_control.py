"""Messages of the control routes: strict on both sides, durations within bounds."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gym.protocol import (
    CommitAnswer,
    Counts,
    Holdings,
    Phase,
    PrepareRequest,
    RestoreAnswer,
    SessionEntry,
)

REQUEST = {"incarnation": 1, "instance_id": "i", "checkpoint_id": "ck", "budget_s": 5, "lease_s": 9}
WHO = {"server": "counter", "instance_id": "i", "incarnation": 1, "phase": Phase.OPEN}


def test_unknown_fields_and_durations_out_of_bounds_are_refused_without_their_values() -> None:
    assert PrepareRequest.model_validate(REQUEST).schema_version == 1
    for wrong in (
        {"unknown": 1},
        {"budget_s": 0},
        {"lease_s": 86_401},
        {"lease_s": float("inf")},
        {"checkpoint_id": "../secret"},
        {"schema_version": 2},
    ):
        with pytest.raises(ValidationError) as refused:
            PrepareRequest.model_validate(REQUEST | wrong)
        assert "secret" not in str(refused.value)


def test_commit_and_restore_answer_the_holdings_beside_their_own_fields() -> None:
    """The fields on the wire stay flat. Break: gym/protocol/control.py: nest `Holdings`."""
    session = SessionEntry(rollout_id="p0_g0", attempt_index=0, revision=2)
    holdings = Holdings(counts=Counts(sessions=1), sessions=[session])
    flat = {"counts", "continuations", "sessions", "storage"}
    who = {"schema_version", *WHO}
    committed = CommitAnswer(**WHO, files=[], **dict(holdings))
    assert committed.model_dump().keys() == flat | who | {"files"}
    assert RestoreAnswer(**WHO, **dict(holdings)).model_dump().keys() == flat | who
    with pytest.raises(ValidationError, match="counts"):
        RestoreAnswer.model_validate(WHO)
