"""Mutations that count as repeated: none in a clean story, and it can fail."""

from __future__ import annotations

import json

import pytest

from gym.protocol import Continuation
from tests.workers.demo.demo_rows import ROLLOUT, conversation, training_rows
from workers.demo.mutations import Mutation, repeated, unexplained


def _mutation(place: str, attempt: int, revision: int) -> Mutation:
    key = ROLLOUT if attempt == 0 else f"{ROLLOUT}-a{attempt}"
    return Mutation(
        rollout_id=ROLLOUT, attempt=attempt, request_id=f"{key}/{place}", revision=revision
    )


def _log() -> list[Mutation]:
    """Saved at revision 2; one more turn before the crash, which is done again afterwards."""
    return [
        _mutation("seed/0", 0, 1),
        _mutation("call-0/0", 0, 2),
        _mutation("call-1/0", 0, 3),
        _mutation("call-1/0", 1, 3),
        _mutation("call-2/0", 1, 4),
        _mutation("verify/0", 1, 5),
    ]


def _saved() -> dict[str, Continuation]:
    return {
        ROLLOUT: Continuation(
            rollout_id=ROLLOUT,
            attempt_index=0,
            capture_key=ROLLOUT,
            last_committed_model_call_id="call-0",
            resource_state_revisions={"counter": 2},
        )
    }


def test_a_turn_lost_by_the_crash_and_done_again_is_no_repetition() -> None:
    assert repeated(_log(), _saved(), training_rows()) == 0


def test_a_saved_turn_done_again_is_one() -> None:
    log = [*_log(), _mutation("call-0/0", 1, 5)]
    assert repeated(log, _saved(), training_rows()) == 1


def test_a_revision_without_its_mutation_is_one() -> None:
    assert repeated(_log(), _saved(), training_rows(revision=6)) == 1


def test_a_counter_that_its_increments_do_not_explain_is_one() -> None:
    assert repeated(_log(), _saved(), training_rows(value=10)) == 1


@pytest.mark.parametrize(("place", "call"), [("seed/0", None), ("call-12/1", 12)])
def test_place_tells_the_call(place: str, call: int | None) -> None:
    mutation = _mutation(place, 3, 1)
    assert (mutation.place, mutation.call) == (place, call)


def test_refusals_of_the_environment_count_nothing() -> None:
    result = conversation()
    result["response"]["output"][1]["output"] = "Internal Server Error"
    assert unexplained(result) == 1
    result["response"]["output"][5]["output"] = json.dumps({"count": 6})
    assert unexplained(result) == 0
