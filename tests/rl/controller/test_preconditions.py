"""Conditions of a save, checked before anything pauses."""

from pathlib import Path

from gym.protocol import (
    Phase,
    ServerUnreachable,
)
from tests.rl.controller.saving import mutate, published, refusal, running
from tests.rl.fakes import World, until


async def test_begin_refuses_before_the_pumps_and_after_the_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.controller.start_fresh(world.workload)
    assert await refusal(world) == "restore_not_finished"
    world.controller.start_pumps()
    await until(lambda: len(world.gym.sent) == 4)
    for name, _ in list(world.gym.sent):
        world.gym.finish(name)
    await until(lambda: world.controller.status().state == "finished")
    assert await refusal(world) == "job_finished"


async def test_unchanged_since_the_last_snapshot(tmp_path: Path) -> None:
    world = await running(tmp_path)
    await published(world)
    assert await refusal(world, "c1") == "unchanged"
    assert await refusal(world, "c2", "before-lr-change") is None  # named: never skipped
    world.controller.saves.resume("c2", None)
    world.plane.stage("1/p0_g1/call-0")  # a staged model call is a change
    assert await refusal(world, "c3") is None
    world.controller.saves.resume("c3", None)
    assert await refusal(world, "c4") is None  # c3 published nothing


async def test_a_mutation_since_the_last_snapshot_is_a_change(tmp_path: Path) -> None:
    world = await running(tmp_path)
    await published(world)
    await mutate(world)
    assert await refusal(world) is None


async def test_begin_checks_servers_and_space_before_anything_pauses(
    tmp_path: Path,
) -> None:
    world = await running(tmp_path)
    world.gym.phases["counter"] = Phase.PREPARED
    answer = await world.controller.saves.begin("c1", None)
    assert answer.refusal == "server_unfit" and "counter" in (answer.reason or "")
    world.gym.phases["counter"] = Phase.OPEN
    world.gym.status_error = ServerUnreachable("refused", participant="counter")
    answer = await world.controller.saves.begin("c2", None)
    assert answer.refusal == "server_unfit" and "counter" in (answer.reason or "")
    world.gym.status_error = None
    world.folder.free = 1000
    assert await refusal(world, "c3") == "no_space"
    world.folder.free = 1 << 40
    assert await refusal(world, "c3") is None
    assert world.folder.number == 1
    assert world.controller.job.admission.is_open
