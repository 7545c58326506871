"""Acknowledgements are owed until Gym has answered."""

from pathlib import Path

from gym.protocol import (
    ResultConflict,
    ServerUnreachable,
)
from rl.messages import JobPhase
from tests.rl.fakes import World, until


async def test_an_acknowledgement_is_owed_until_gym_has_answered(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.gym.acknowledge_errors = [ServerUnreachable("down"), ServerUnreachable("down")]
    world.gym.acknowledge_gate.clear()
    world.gym.finish("p0_g0")
    await until(lambda: world.controller.status().owed == 1)
    assert world.controller.job.ledger["p0_g0"].finished and not world.gym.acknowledged
    world.gym.acknowledge_gate.set()
    await until(lambda: world.controller.status().owed == 0)
    assert len(world.gym.acknowledged) == 1


async def test_a_conflicting_result_fails_the_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.gym.acknowledge_errors = [ResultConflict("another digest")]
    world.gym.finish("p0_g0")
    await until(lambda: world.controller.job.phase is JobPhase.FAILED)
    assert "result_conflict" in (world.controller.status().reason or "")
