"""`python -m tests.real.rows`: print every training row of the running job as one JSON line."""

from __future__ import annotations

import asyncio
import json

from rl.actors import attached
from rl.data_plane.names import TRAINING
from rl.data_plane.transfer_queue import DataPlane


async def main() -> None:
    await attached()
    plane = await DataPlane.attach()
    keys = sorted(await plane.keys(TRAINING))
    rows = await plane.get_training(keys) if keys else {}
    print(
        json.dumps(
            {
                key: {
                    "token_ids": list(map(int, row.token_ids)),
                    "token_mask": list(map(int, row.token_mask)),
                    "log_probs": list(map(float, row.log_probs)),
                    "reward": row.reward,
                    "result": json.loads(row.result) if row.result else None,
                    "tag": tag,
                }
                for key, (row, tag) in rows.items()
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
