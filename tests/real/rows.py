"""`python -m tests.real.rows`: print every training row of the running job as one JSON line."""

from __future__ import annotations

import asyncio
import json

from rl.data_plane import read_training_rows


async def main() -> None:
    print(
        json.dumps(
            {
                row.rollout_id: {
                    "token_ids": row.token_ids.tolist(),
                    "token_mask": row.token_mask.tolist(),
                    "log_probs": row.log_probs.tolist(),
                    "reward": row.reward,
                    "result": row.verify_answer,
                    "tag": row.tag,
                }
                async for row in read_training_rows(batch_rows=8)
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
