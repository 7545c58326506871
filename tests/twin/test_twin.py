"""A job with crashes at random instants ends with the rows of the undisturbed one.

Invariants 4 to 7 and 11. The seed is printed; `python -m tests.twin.real --seed N --points 6`
and `python -m tests.twin.in_process --seed N --points K` replay it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.twin import in_process, real
from tests.twin.plan import BLOCK, Where, plan
from tests.twin.results import write_results
from tests.twin.rows import differences, repeated

IN_PROCESS_POINTS = 20


def _seed() -> int:
    return random.SystemRandom().getrandbits(32)


def test_a_seed_gives_the_same_crashes_again() -> None:
    assert plan(7, 30) == plan(7, 30)
    assert plan(7, 30) != plan(8, 30)


def test_every_six_crashes_meet_saves_restores_and_the_whole_machine() -> None:
    for seed in range(20):
        points = plan(seed, 3 * BLOCK)
        assert points[0].where is not Where.RESTORE, "nothing was restored yet"
        assert points[0].saves > 0
        for start in range(0, len(points), BLOCK):
            block = points[start : start + BLOCK]
            assert sum(point.machine for point in block) == 1
            assert sum(point.where is Where.SAVE for point in block) == 3
            assert sum(point.where is Where.RESTORE for point in block) == 2


def _row(**changes: object) -> dict[str, object]:
    tag = {"attempt_index": 0, "capture_keys": ["p0_g0"], "mutations": 3, "turns": 1}
    row = {"token_ids": [1, 2], "token_mask": [0, 1], "log_probs": [0.0, -1.0], "reward": 1.0}
    return {**row, "result": {"final_count": 3}, "tag": tag, **changes}


def test_a_row_that_differs_in_anything_but_its_run_is_told() -> None:
    again = _row(tag={"attempt_index": 2, "capture_keys": ["x"], "mutations": 3, "turns": 1})
    assert differences({"p0_g0": _row()}, {"p0_g0": again}) == []
    more = _row(tag={"attempt_index": 0, "capture_keys": [], "mutations": 4, "turns": 1})
    assert differences({"p0_g0": _row()}, {"p0_g0": more}) == ["p0_g0: tag.mutations differs"]
    for key, value in {"token_ids": [1, 3], "token_mask": [1, 1], "reward": 0.0}.items():
        found = {"p0_g0": _row(**{key: value})}
        assert differences({"p0_g0": _row()}, found) == [f"p0_g0: {key} differs"]


def test_a_missing_and_a_superfluous_row_are_told() -> None:
    assert differences({"a": _row()}, {"b": _row()}) == ["a: no row", "b: a row too much"]


def test_a_mutation_that_took_effect_twice_in_one_life_is_told() -> None:
    join, first = {"event": "control"}, {"event": "mutation", "request_id": "a/call-0/0"}
    assert repeated([join, first, join, first]) == []
    assert repeated([join, first, first]) == ["a/call-0/0: took effect twice"]


def test_the_results_of_one_layer_leave_the_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "results" / "twin.json"
    write_results("real", seed=1, points=100, differences=0, path=path, saves=3)
    write_results("in_process", seed=2, points=500, differences=1, path=path)
    write_results("in_process", seed=3, points=500, differences=0, path=path)
    found = json.loads(path.read_text())
    assert (found["real_points"], found["in_process_points"]) == (100, 500)
    assert (found["differences"], found["seeds"]) == (0, [1, 3])
    assert found["runs"]["real"]["command"] == "python -m tests.twin.real --seed 1 --points 100"


@pytest.mark.real
async def test_crashes_at_any_await_change_nothing(tmp_path: Path) -> None:
    """Invariant 11. Break: gym/counter.py: import the count plus one; seen red."""
    twin = in_process.Twin(tmp_path, seed=_seed(), points=IN_PROCESS_POINTS)
    outcome = await twin.run()
    assert outcome.points == IN_PROCESS_POINTS, f"seed {outcome.seed}"
    assert outcome.differences == [], f"seed {outcome.seed}"


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(420)
async def test_crashes_of_real_processes_change_nothing(tmp_path: Path) -> None:
    """Six: in saves, in restores, and once the whole machine."""
    twin = real.Twin(tmp_path, port_base=27_600, seed=_seed(), points=BLOCK)
    outcome = await twin.run()
    print(f"met: {dict(outcome.met)}; seconds: {dict(outcome.spent_s.most_common(8))}")
    assert outcome.points == BLOCK, f"seed {outcome.seed}"
    assert outcome.saves > 0 and outcome.restores > 0, f"seed {outcome.seed}"
    assert outcome.differences == [], f"seed {outcome.seed}"
