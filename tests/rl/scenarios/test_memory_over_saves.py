"""Saves in a row leave nothing in the controller but the newest 1,024 ids."""

from __future__ import annotations

from pathlib import Path

from tests.object_counts import grown, object_counts
from tests.rl.fakes import World

FEW, MANY = 5, 40


async def test_what_the_controller_holds_does_not_grow_with_saves(tmp_path: Path) -> None:
    """Break: rl/controller/save.py: keep the answers of ended saves, or their clearing tasks."""
    world = World(tmp_path)
    await world.start()
    world.hold("p0_g0")
    for number in range(FEW):
        await _one(world, number)
    before = object_counts("rl", "gym")
    for number in range(FEW, FEW + MANY):
        await _one(world, number)
    remembered = (
        "rl.controller.save.EndedSave",
        "gym.ended_ids.EndedIds._ids",
    )  # the newest 1,024
    assert grown(before, object_counts("rl", "gym"), MANY, *remembered) == {}


async def _one(world: World, number: int) -> None:
    """One save; every other is given up after its cut."""
    checkpoint = f"{number:08d}"
    begun = await world.controller.saves.begin(checkpoint, "named: never unchanged")
    await world.controller.saves.close_admission(checkpoint, 1)
    await world.controller.saves.cut(checkpoint, begun.folder, 5)
    published = begun.snapshot if number % 2 else None
    world.controller.saves.resume(checkpoint, published)
