"""The environment `counter`."""

from __future__ import annotations

from pathlib import Path

from gym.environments.counter import Counter
from tests.gym.resource_server import (
    RESPONSE,
    ROW,
    revision,
    served,
)


async def test_the_counter_counts_and_verifies_as_the_example_does(tmp_path: Path) -> None:
    async with served(Counter(), tmp_path) as server:
        seeded = await server.seed()
        assert (seeded.status_code, seeded.json(), revision(seeded)) == (200, {}, 1)
        added = await server.call("/increment_counter", {"count": 3}, "call-0")
        assert (added.json(), revision(added)) == ({"success": True}, 2)
        asked = await server.call("/get_counter_value", {}, "call-1")
        assert (asked.json(), revision(asked)) == ({"count": 6}, 3)
        verified = await server.call("/verify", {**ROW, "response": RESPONSE}, "verify")
        assert verified.json() == {**ROW, "response": RESPONSE, "reward": 1.0, "final_count": 6}
