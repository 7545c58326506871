"""The `restart_only` example."""

from __future__ import annotations

from pathlib import Path

from examples.dice import Dice
from gym.protocol import Mode
from tests.gym.resource_server import served


async def test_a_rollout_that_starts_over_meets_the_same_rolls(tmp_path: Path) -> None:
    assert Dice().mode is Mode.RESTART_ONLY
    async with served(Dice(), tmp_path, name="dice") as server:
        rolls: dict[tuple[str, int], list[dict[str, int]]] = {}
        for rollout, run in (("p0_g0", 0), ("p0_g0", 1), ("p0_g1", 0)):
            await server.seed(rollout=rollout, run=run)
            rolls[rollout, run] = [
                (await server.call("/roll_die", {}, f"call-{n}", rollout=rollout, run=run)).json()
                for n in range(8)
            ]
        assert rolls["p0_g0", 0] == rolls["p0_g0", 1] != rolls["p0_g1", 0]
        assert [one["rolls"] for one in rolls["p0_g0", 0]] == list(range(1, 9))
        assert all(1 <= one["rolled"] <= 6 for one in rolls["p0_g0", 0])
        verified = await server.call("/verify", {"response": {}}, "verify", rollout="p0_g1")
        assert verified.json()["rolls"] == 8
        assert 0 < verified.json()["reward"] <= 1
