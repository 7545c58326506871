"""What the demo counts as repeated or there twice: nothing for a clean story, and it can fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.protocol import Continuation
from rl.data_plane.rows import TrainingRow
from rl.messages import ControllerStatus, JobPhase
from workers.demo.report import Mutation, _duplicates, _repeated, _unexplained

ROLLOUT = "p0_g1"
CALLS = [("increment_counter", 2), ("increment_counter", 3), ("get_counter_value", None)]


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


def _result(value: int = 8) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for number, (name, count) in enumerate(CALLS):
        arguments = json.dumps({} if count is None else {"count": count})
        answer: dict[str, Any] = {"success": True} if count is not None else {"count": value}
        call = {"call_id": str(number), "name": name, "arguments": arguments}
        items.append({"type": "function_call", **call})
        output = {"call_id": str(number), "output": json.dumps(answer)}
        items.append({"type": "function_call_output", **output})
    return {"initial_count": 3, "response": {"output": items}}


def _rows(revision: int = 5, value: int = 8) -> dict[str, tuple[TrainingRow, dict[str, Any]]]:
    row = TrainingRow([1], [1], [0.0], 1.0, json.dumps(_result(value)).encode())
    return {ROLLOUT: (row, {"attempt_index": 1, "mutations": revision, "rollout_id": ROLLOUT})}


def test_a_turn_lost_by_the_crash_and_done_again_is_no_repetition() -> None:
    assert _repeated(_log(), _saved(), _rows()) == 0


def test_a_saved_turn_done_again_is_one() -> None:
    log = [*_log(), _mutation("call-0/0", 1, 5)]
    assert _repeated(log, _saved(), _rows()) == 1


def test_a_revision_without_its_mutation_is_one() -> None:
    assert _repeated(_log(), _saved(), _rows(revision=6)) == 1


def test_a_counter_that_its_increments_do_not_explain_is_one() -> None:
    assert _repeated(_log(), _saved(), _rows(value=10)) == 1


def _end(rows_put: int) -> ControllerStatus:
    return ControllerStatus(
        job_id="demo",
        incarnation=2,
        state=JobPhase.FINISHED,
        admission_open=True,
        checkpoint_id=None,
        lease_left_s=None,
        rollouts=1,
        rollouts_total=1,
        running=0,
        finished=1,
        failed=0,
        owed=0,
        rows_put=rows_put,
        last_snapshot=None,
    )


@pytest.mark.parametrize(
    ("put_before", "put_after", "duplicates"),
    [(0, 1, 0), (1, 0, 0), (0, 2, 1), (2, 0, 1), (1, 1, 1)],
)
def test_a_rollout_taken_over_twice_is_one_whatever_life_did_it(
    put_before: int, put_after: int, duplicates: int
) -> None:
    """TransferQueue shows one row each time. Break: count rows against their rollouts."""
    assert _duplicates(put_before, _end(put_after), _rows()) == duplicates


@pytest.mark.parametrize(("place", "call"), [("seed/0", None), ("call-12/1", 12)])
def test_place_tells_the_call(place: str, call: int | None) -> None:
    mutation = _mutation(place, 3, 1)
    assert (mutation.place, mutation.call) == (place, call)


def test_refusals_of_the_environment_count_nothing() -> None:
    result = _result()
    result["response"]["output"][1]["output"] = "Internal Server Error"
    assert _unexplained(result) == 1
    result["response"]["output"][5]["output"] = json.dumps({"count": 6})
    assert _unexplained(result) == 0
