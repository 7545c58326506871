"""The shared state: limits of TransferQueue, failures, the newest snapshot."""

import asyncio
from pathlib import Path

from rl.messages import JobPhase
from tests.rl.controller.saving import A, B, published, refusal, running
from tests.rl.fakes import World, until


async def test_an_older_snapshot_that_is_reported_late_is_not_the_newest(tmp_path: Path) -> None:
    """A worker that was stopped during its resume repeats it after the next save.

    Break: rl/controller/job_state.py: take the one reported last.
    """
    world = await running(tmp_path)
    await published(world)
    world.plane.stage("1/p0_g1/call-0")
    await published(world, B)
    world.controller.saves.resume(A, "snapshot_000001")
    assert world.controller.status().last_snapshot == "snapshot_000002"
    assert await refusal(world, "c1") == "unchanged"


async def test_a_put_without_an_answer_fails_the_job(tmp_path: Path) -> None:
    world = World(tmp_path, data_plane_timeout_s=0.05)
    await world.start()
    world.plane.gate.clear()
    world.gym.finish("p0_g0")
    await until(lambda: world.controller.job.phase is JobPhase.FAILED)
    assert "data_plane_lost" in (world.controller.job.reason or "")


async def test_a_put_waits_out_a_save_that_still_runs(tmp_path: Path) -> None:
    world = World(tmp_path, data_plane_timeout_s=0.05)
    await world.start()
    saving = asyncio.Event()
    store = asyncio.create_task(world.controller.job.storing.run("a save", None, saving.wait))
    world.plane.gate.clear()
    world.gym.finish("p0_g0")
    await asyncio.sleep(0.2)
    assert world.controller.job.phase is JobPhase.RUNNING
    world.plane.gate.set()
    saving.set()
    await store
    await until(lambda: len(world.gym.acknowledged) == 1)
