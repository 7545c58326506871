"""A controller among fakes while it is saved."""

import asyncio
from pathlib import Path

from rl.messages import BeginAnswer
from tests.rl.fakes import World

A, B = "aaaaaaaa-1", "bbbbbbbb-2"
"""Ids of two saves."""


async def running(tmp_path: Path, **changes: object) -> World:
    """Four rollouts under way, p0_g0 held by the agent after one call."""
    world = World(tmp_path, **changes)
    await world.start()
    world.hold("p0_g0")
    return world


async def closed(world: World, checkpoint_id: str = A) -> BeginAnswer:
    begun = await world.controller.saves.begin(checkpoint_id, None)
    assert begun.agreed, begun
    await world.controller.saves.close_admission(checkpoint_id, 1)
    return begun


async def published(world: World, checkpoint_id: str = A) -> None:
    begun = await closed(world, checkpoint_id)
    await world.controller.saves.cut(checkpoint_id, begun.folder, 5)
    world.controller.saves.resume(checkpoint_id, begun.snapshot)


async def mutate(world: World) -> None:
    async with asyncio.timeout(1), world.controller.job.barrier.mutation():
        pass


async def refusal(world: World, checkpoint_id: str = B, name: str | None = None) -> str | None:
    answer = await world.controller.saves.begin(checkpoint_id, name)
    assert answer.agreed == (answer.refusal is None)
    return answer.refusal
