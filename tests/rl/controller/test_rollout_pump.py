"""The pump: every rollout is taken over once, also after repeats, refusals and losses."""

import asyncio
from pathlib import Path

import pytest

from gym.protocol import (
    NotJoined,
    ServerUnreachable,
    SessionUncertain,
    staging_key,
)
from rl.config import Workload
from rl.errors import DataPlaneLost
from rl.messages import JobPhase
from rl.records.rollout_record import RunPhase
from tests.rl.fakes import AGENT, World, until


async def test_a_job_ends_with_every_rollout_taken_over_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    assert sorted(world.gym.sent) == [(f"p{k}_g{j}", 0) for k in range(2) for j in range(2)]
    results = {name: world.gym.finish(name) for name, _ in list(world.gym.sent)}
    await until(lambda: world.controller.job.phase is JobPhase.FINISHED)
    assert sorted(world.plane.puts) == sorted(results)
    assert world.controller.status().rows_put == 4
    assert sorted(world.gym.acknowledged) == sorted(
        (name, 0, result.result_digest) for name, result in results.items()
    )
    assert list(world.controller.job.index) == ["p0", "p1"]
    tag = world.plane.tags["p0_g0"]
    assert tag["turns"] == 2 and tag["mutations"] == 3 and tag["capture_keys"] == ["p0_g0"]
    assert world.plane.rows["rollout_data"]["p0_g0"].token_ids == [1, 2, 3, 1, 2, 3]
    assert world.controller.status().finished == 4
    owned = world.controller.job.ledger["p0_g0"].staging_keys
    assert owned == ["1/p0_g0/call-0", "1/p0_g0/call-1"]


async def test_at_most_max_inflight_rollouts_are_under_way(tmp_path: Path) -> None:
    world = World(tmp_path)
    workload = Workload(dataset=world.workload.dataset, generations=2, max_inflight=3)
    await world.controller.start_fresh(workload)
    world.controller.start_pumps()
    await until(lambda: len(world.gym.sent) == 3)
    await asyncio.sleep(0.01)
    assert len(world.controller.job.ledger) == 3
    world.gym.finish("p0_g0")
    await until(lambda: len(world.gym.sent) == 4)


async def test_a_result_that_comes_again_makes_no_second_row(tmp_path: Path) -> None:
    """Invariant 5. Break: rl/controller/rollout_pump.py: put before the ledger; seen red."""
    world = World(tmp_path)
    await world.start()
    result = world.gym.finish("p0_g0")
    await until(lambda: len(world.gym.acknowledged) == 1)
    chain = list((await world.plane.get_staging(["1/p0_g0/call-0"])).values())
    with pytest.raises(ValueError, match="run 0 of p0_g0 is not under way"):
        await world.controller._pump._take_over(result, chain)
    assert world.plane.puts == ["p0_g0"]


async def test_a_result_of_another_run_fails_the_job_and_makes_no_row(tmp_path: Path) -> None:
    """Invariant 5. Break: rl/controller/rollout_pump.py: put before the ledger; seen red."""
    world = World(tmp_path)
    await world.start()
    world.gym.runs["p0_g0", 0].set_result(world.gym.result("p0_g0", 1))
    await until(lambda: world.controller.job.phase is JobPhase.FAILED)
    assert world.plane.puts == [] and world.gym.acknowledged == []


async def test_a_result_is_acknowledged_only_once_its_row_is_put(tmp_path: Path) -> None:
    """Break: rl/controller/rollout_pump.py: acknowledge before the row is put."""
    world = World(tmp_path)
    await world.start()
    world.plane.gate.clear()
    world.gym.finish("p0_g0")
    await until(lambda: len(world.plane.puts) == 1)
    await asyncio.sleep(0.01)
    assert world.gym.acknowledged == []
    world.plane.gate.set()
    await until(lambda: len(world.gym.acknowledged) == 1)
    assert world.plane.puts == ["p0_g0"]
    assert world.controller.job.phase is JobPhase.RUNNING
    assert world.controller.job.ledger["p0_g0"].finished


async def test_a_double_take_over_is_counted_though_it_overwrites_its_row(tmp_path: Path) -> None:
    """Otherwise `duplicate_rows` would be 0.

    Break: rl/controller/rollout_pump.py: count a row only where there was none.
    """
    world = World(tmp_path)
    await world.start()
    result = world.gym.finish("p0_g0")
    await until(lambda: len(world.gym.acknowledged) == 1)
    ledger = world.controller.job.ledger
    record = ledger["p0_g0"]
    ledger.under_way = lambda *_: record  # type: ignore[method-assign]  # prevents it otherwise
    chain = list((await world.plane.get_staging(record.staging_keys)).values())
    await world.controller._pump._take_over(result, chain)
    assert world.controller.status().rows_put == 2
    assert list(world.plane.rows["rollout_data"]) == ["p0_g0"]


async def test_a_lost_put_fails_the_job_and_finishes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.plane.fail = DataPlaneLost("gone")
    world.gym.finish("p0_g0")
    await until(lambda: world.controller.job.phase is JobPhase.FAILED)
    assert not world.controller.job.ledger["p0_g0"].finished
    assert not world.gym.acknowledged


async def test_a_missing_staging_row_fails_the_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    result = world.gym.result("p0_g0", 0)
    del world.plane.rows["rollout_staging"]["1/p0_g0/call-1"]
    world.gym.runs["p0_g0", 0].set_result(result)
    await until(lambda: world.controller.job.phase is JobPhase.FAILED)
    assert world.plane.puts == []
    assert "1 staging rows are missing" in (world.controller.job.reason or "")


async def test_a_failed_run_is_started_over_with_nothing_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    stale = staging_key(1, "p0_g0", "call-0")
    other = staging_key(1, "p0_g1", "call-0")
    world.plane.stage(stale)
    world.plane.stage(other)
    world.gym.runs["p0_g0", 0].set_exception(SessionUncertain("a handler raised"))
    await until(lambda: ("p0_g0", 1) in world.gym.sent)
    assert await world.plane.keys("rollout_staging") == {other}
    runs = world.controller.job.ledger["p0_g0"].runs
    assert [run.state for run in runs] == [RunPhase.FAILED, RunPhase.STARTED]
    assert runs[0].failure == "session_uncertain"
    world.gym.finish("p0_g0", 1)
    await until(lambda: world.controller.job.ledger["p0_g0"].finished)


async def test_what_a_failed_run_stages_late_goes_when_the_rollout_is_finished(
    tmp_path: Path,
) -> None:
    """The generation endpoint finishes calls of a failed run; their rows would stay for ever.

    Break: rl/controller/rollout_pump.py: clear only when a run fails.
    """
    world = World(tmp_path, rows=1)
    await world.start()
    world.plane.stage("1/p0_g0/call-0")
    world.gym.runs["p0_g0", 0].set_exception(SessionUncertain("a handler raised"))
    await until(lambda: ("p0_g0", 1) in world.gym.sent)
    world.plane.stage("1/p0_g0/call-1")
    world.plane.stage("1/p0_g1/call-0")
    world.gym.finish("p0_g0", 1)
    await until(lambda: world.controller.status().finished == 1)
    await until(lambda: world.gym.acknowledged)
    assert set(world.plane.rows["rollout_staging"]) == {
        "1/p0_g0-a1/call-0",
        "1/p0_g0-a1/call-1",
        "1/p0_g1/call-0",
    }


async def test_after_max_runs_the_rollout_is_in_the_rows_once_without_reward(
    tmp_path: Path,
) -> None:
    """Every server forgets the rollout once the save that has counted its run is over.

    Break: rl/controller/rollout_pump.py: have only its agent drop it.
    """
    world = World(tmp_path, max_runs=2)
    await world.start()
    world.gym.forget_errors = [ServerUnreachable("a save holds the run")] * 2
    for attempt in range(2):
        await until(lambda attempt=attempt: ("p0_g0", attempt) in world.gym.runs)
        world.gym.runs["p0_g0", attempt].set_exception(SessionUncertain("a handler raised"))
    await until(lambda: world.controller.status().rows_put == 1)
    assert world.controller.job.ledger["p0_g0"].failed
    assert world.plane.puts == ["p0_g0"]
    assert world.plane.rows["rollout_data"]["p0_g0"].reward is None
    assert world.controller.status().failed == 1
    assert world.controller.status().failures == {"session_uncertain": 1}
    await until(lambda: world.gym.forgotten == [("p0_g0", AGENT)])
    assert world.gym.let_gone == [("p0_g0", AGENT)], "the first run is followed by another"
    world.gym.finish("p0_g1")
    await until(lambda: len(world.controller.job.index) == 1)


async def test_a_failed_rollout_may_be_the_last_of_its_group(tmp_path: Path) -> None:
    world = World(tmp_path, max_runs=1)
    await world.start()
    world.gym.finish("p0_g1")
    await until(lambda: world.controller.job.ledger["p0_g1"].finished)
    world.gym.runs["p0_g0", 0].set_exception(SessionUncertain("a handler raised"))
    await until(lambda: len(world.controller.job.index) == 1)


async def test_a_run_that_fails_while_closed_is_sent_again_after_opening(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.controller.job.admission.close()
    world.gym.runs["p0_g0", 0].set_exception(SessionUncertain("a handler raised"))
    await until(lambda: len(world.controller.job.ledger["p0_g0"].runs) == 2)
    await asyncio.sleep(0.02)
    assert ("p0_g0", 1) not in world.gym.sent
    assert world.controller.job.ledger["p0_g0"].run.state is RunPhase.WAITING
    assert world.gym.let_gone == [("p0_g0", AGENT)], "a save would wait for its result"
    world.controller.job.admission.open()
    await until(lambda: ("p0_g0", 1) in world.gym.sent)


@pytest.mark.parametrize("error", [NotJoined("restarted"), DataPlaneLost("gone")])
async def test_a_lost_process_fails_the_job_not_the_run(tmp_path: Path, error: Exception) -> None:
    world = World(tmp_path)
    await world.start()
    world.gym.runs["p0_g0", 0].set_exception(error)
    await until(lambda: world.controller.job.phase is JobPhase.FAILED)
    assert world.controller.job.ledger["p0_g0"].run.attempt_index == 0


async def test_no_run_is_sent_while_admission_is_closed(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.controller.start_fresh(world.workload)
    world.controller.job.admission.close()
    world.controller.start_pumps()
    await asyncio.sleep(0.02)
    assert world.gym.sent == [] and len(world.controller.job.ledger) == 0
    world.controller.job.admission.open()
    await until(lambda: len(world.gym.sent) == 4)


async def test_reservation_and_loader_place_move_together_under_a_cut(tmp_path: Path) -> None:
    """Invariant 6. Break: rl/controller/rollout_pump.py: reserve outside the barrier; seen red."""
    world = World(tmp_path)
    await world.controller.start_fresh(world.workload)
    async with world.controller.job.barrier.cut():
        world.controller.start_pumps()
        await asyncio.sleep(0.02)
        assert world.controller.job.loader.place.place == 0
        assert len(world.controller.job.ledger) == 0
    await until(lambda: len(world.gym.sent) == 4)
