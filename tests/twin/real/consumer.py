"""`python -m tests.twin.real.consumer`: claim every unclaimed training row.

Prints one line of JSON: the number of rows that TransferQueue gave this consumer.
"""

from __future__ import annotations

import asyncio
import json

import transfer_queue as tq

from rl.actors import attached
from rl.data_plane.names import TRAINING
from rl.data_plane.transfer_queue import DataPlane

TASK = "trainer"


async def claim() -> int:
    """Fetch the rows that are ready and unclaimed; answer their number."""
    plane = await DataPlane.attach()
    there = len(await plane.keys(TRAINING))
    for size in range(there, 0, -1):  # a batch comes whole or not at all
        found = await tq.get_client().async_get_meta(
            ["token_ids", "reward"], size, TRAINING, task_name=TASK
        )
        if found.size:
            return int(found.size)
    return 0


async def main() -> None:
    await attached()
    print(json.dumps({"event": "claimed", "rows": await claim()}))


if __name__ == "__main__":
    asyncio.run(main())
