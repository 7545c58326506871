"""A job with crashes at random times ends with the rows of the undisturbed one.

Invariants 4 to 7 and 11. The seed is printed; `python -m tests.twin.real --seed N --points 6`
and `python -m tests.twin.in_process --seed N --points K` replay it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest

from gym.protocol import TurnpointError
from tests.twin.in_process import execution
from tests.twin.in_process import twin as in_process
from tests.twin.in_process.breaks import BREAKS, Break
from tests.twin.in_process.crash_points import CrashPoint
from tests.twin.in_process.twin import claims_that_differ
from tests.twin.mishaps import Mishap
from tests.twin.mixed_rows import SORTS, require_complete, wrongly_over
from tests.twin.real import twin as real
from tests.twin.real.crash_plan import BLOCK, PHASES, Place, Where, plan
from tests.twin.results import write_results
from tests.twin.rows import differences, repeated, sent_too_often

IN_PROCESS_POINTS = 20
BROKEN_SEED, BROKEN_POINTS = 5, 100
"""Fixed, so that whether these points find a break is no matter of chance."""


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


def test_a_hundred_crashes_come_to_every_place_of_every_phase() -> None:
    """Break: draw the phase of each point anew."""
    for seed in range(20):
        points = plan(seed, 100)
        met = {(point.phase, point.place) for point in points}
        for where, phases in PHASES.items():
            assert {phase for phase, _ in met} >= set(phases), where
        assert {(phase, place) for phase in PHASES[Where.SAVE] for place in Place} <= met
        claims = sum(point.claims for point in points)
        assert 10 < claims < 60


def test_a_crash_comes_in_the_phase_that_was_drawn_or_at_its_end() -> None:
    async def work(crash: CrashPoint, steps: int) -> str:
        for phase in ("save: begin_checkpoint", "save: cut_rl_state", "running") * 2:
            await crash.enter(phase)
            for _ in range(steps):
                await crash.reach("asked")
        return "survived"

    async def crashes(crash: CrashPoint, steps: int) -> tuple[str, str]:
        working = asyncio.create_task(work(crash, steps))
        await asyncio.wait_for(crash.happened.wait(), 5)
        working.cancel()
        return crash.phase, crash.at

    async def both() -> None:
        cut = "save: cut_rl_state"
        assert await crashes(CrashPoint(phase=cut, count=3), 5) == (cut, "asked")
        assert await crashes(CrashPoint(phase=cut, count=30), 5) == (cut, f"{cut} is over")
        assert await crashes(CrashPoint(phase=cut, count=1, before=1), 5) == (cut, f"{cut} begins")

    asyncio.run(both())


def _row(**changes: object) -> dict[str, object]:
    tag = {"attempt_index": 0, "capture_keys": ["p0_g0"], "mutations": 3, "turns": 1}
    row = {"token_ids": [1, 2], "token_mask": [0, 1], "log_probs": [0.0, -1.0], "reward": 1.0}
    return {**row, "result": {"final_count": 3}, "tag": tag, **changes}


def test_a_row_that_differs_in_anything_but_its_run_is_reported() -> None:
    again = _row(tag={"attempt_index": 2, "capture_keys": ["x"], "mutations": 3, "turns": 1})
    assert differences({"p0_g0": _row()}, {"p0_g0": again}) == []
    more = _row(tag={"attempt_index": 0, "capture_keys": [], "mutations": 4, "turns": 1})
    assert differences({"p0_g0": _row()}, {"p0_g0": more}) == ["p0_g0: tag.mutations differs"]
    for key, value in {"token_ids": [1, 3], "token_mask": [1, 1], "reward": 0.0}.items():
        found = {"p0_g0": _row(**{key: value})}
        assert differences({"p0_g0": _row()}, found) == [f"p0_g0: {key} differs"]


def test_an_undisturbed_job_that_failed_or_did_nothing_is_refused_as_reference() -> None:
    """Break: tests/twin/mixed_rows.py: look at the rewards of counting rollouts alone."""
    whole = {f"p{k}_g{j}": _row() for k in range(2) for j in range(2)}
    require_complete(whole, 2)
    dice = f"p{SORTS.index('dice')}_g0"
    for wrong in (
        _row(reward=None),
        _row(token_ids=[], token_mask=[], log_probs=[]),
        _row(tag={"turns": 0, "mutations": 1}),
    ):
        with pytest.raises(AssertionError, match=dice):
            require_complete({**whole, dice: wrong}, 2)


def test_a_missing_and_an_extra_row_are_reported() -> None:
    assert differences({"a": _row()}, {"b": _row()}) == ["a: no row", "b: an extra row"]


def test_a_mutation_that_took_effect_twice_in_one_life_is_reported() -> None:
    def line(server: str, event: str) -> dict[str, object]:
        return {"served_by": server, "event": event, "request_id": "a/call-0/0"}

    join, first, other = line("x", "control"), line("x", "mutation"), line("y", "mutation")
    assert repeated([join, first, other, join, first]) == []
    assert repeated([join, first, first]) == ["a/call-0/0: took effect twice on x"]


def test_a_run_that_nothing_explains_is_reported() -> None:
    assert sent_too_often({"a": 3, "b": 0}, {"a": 2}, {"a": 1}) == []
    assert len(sent_too_often({"a": 3, "b": 1}, {"a": 2}, {"b": 0})) == 2


def test_a_row_that_the_consumer_gets_twice_or_never_is_reported() -> None:
    rows = {"a": {}, "b": {}}
    assert claims_that_differ(["a", "b"], rows) == []
    assert claims_that_differ(["a", "a"], rows) == [
        "a: given to the consumer 2 times",
        "b: never given to the consumer",
    ]


def test_only_rollouts_of_the_restart_only_server_and_failed_runs_may_start_over() -> None:
    dice = f"p{SORTS.index('dice')}_g0"
    assert wrongly_over(dice, "used dice, which is restart_only") is None
    assert wrongly_over("p0_g0", "its run had failed") is None
    assert wrongly_over("p0_g0", "used dice, which is restart_only") is not None
    assert wrongly_over(dice, None) is not None


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
    """Invariant 11. Break: gym/environments/counter.py: import the count plus one; seen red.

    It checks 4 to 7 as well. Each of `tests.twin.in_process.breaks` was seen red: drop an owed
    acknowledgement after a restore, begin the loader again, skip a prompt, keep stale staging
    rows, apply a mutation twice, keep a consumer's claims, continue what is restart_only, send no
    restored rollout again.
    """
    twin = in_process.Twin(tmp_path, seed=_seed(), points=IN_PROCESS_POINTS)
    outcome = await twin.run()
    assert outcome.points == IN_PROCESS_POINTS, f"seed {outcome.seed}"
    assert outcome.differences == [], f"seed {outcome.seed}"
    assert outcome.saves > 0 and outcome.restores > 0, f"seed {outcome.seed}"
    # Few saves are cancelled: so many points may have none of them.
    missed = {mishap.value for mishap in Mishap} - {Mishap.CANCELLED.value} - set(outcome.meanwhile)
    assert not missed, f"seed {outcome.seed}"


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("break_it", BREAKS, ids=lambda break_it: break_it.__name__)
async def test_the_twin_finds_each_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_it: Break
) -> None:
    """The twin can fail: each of `tests.twin.in_process.breaks` is a difference or an error."""
    break_it(monkeypatch)
    monkeypatch.setattr(execution, "BUDGET_S", 4.0)
    monkeypatch.setattr(in_process, "EXECUTION_LIMIT_S", 20.0)
    twin = in_process.Twin(tmp_path, seed=BROKEN_SEED, points=BROKEN_POINTS, stop_at_first=True)
    try:
        found = (await twin.run()).differences
    except (AssertionError, TurnpointError, ValueError) as error:
        found = [*twin.outcome.differences, str(error)]
    assert any(re.search(BREAKS[break_it], sentence) for sentence in found), found


@pytest.mark.real
@pytest.mark.timeout(900)
async def test_crashes_of_real_processes_change_nothing(tmp_path: Path) -> None:
    """Invariant 11. Six: three in saves, two in restores, one of them of the whole machine.

    Break: gym/environments/counter.py: import the count plus one; seen red.
    """
    twin = real.Twin(tmp_path, port_base=27_600, seed=_seed(), points=BLOCK)
    outcome = await twin.run()
    print(f"met: {dict(outcome.phases)}; seconds: {dict(outcome.spent_s.most_common(8))}")
    assert outcome.points == BLOCK, f"seed {outcome.seed}"
    assert outcome.saves > 0 and outcome.restores > 0, f"seed {outcome.seed}"
    assert sum(n for phase, n in outcome.phases.items() if phase.startswith("save")) == 3
    assert outcome.differences == [], f"seed {outcome.seed}"
