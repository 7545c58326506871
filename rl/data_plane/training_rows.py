"""Reading a job's training rows from any process that can reach its Ray cluster.

    import asyncio
    from rl.data_plane import read_training_rows

    async def main() -> None:
        async for row in read_training_rows("127.0.0.1:6379"):
            print(row.rollout_id, row.reward, row.token_ids.shape)

    asyncio.run(main())

Guarantees: each row is the one that the job stored (its digest is compared); a rollout is read
once; nothing is claimed or changed, so other readers and the trainer find every row. Not
guaranteed: rows that are put after the reading began.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl.data_plane.names import TRAINING


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """One finished rollout; the three arrays have one entry per token, shape `(tokens,)`."""

    rollout_id: str
    """`p<prompt>_g<generation>`."""
    attempt_index: int
    """Number of the run that finished; above 0 after a failed run or a restore."""
    token_ids: NDArray[np.int32]
    """Prompt and generated tokens of all turns, in order; empty for a failed rollout."""
    token_mask: NDArray[np.int32]
    """1 for tokens that the policy generated, 0 for all others."""
    log_probs: NDArray[np.float32]
    """Of the generated tokens, as sampled; 0.0 where the mask is 0."""
    reward: float | None
    """None for a rollout that has failed for good."""
    verify_answer: dict[str, Any]
    """The environment's answer to `verify`; `{"failed": code}` for a failed rollout."""
    tag: dict[str, Any]
    """Small values beside the row: `turns`, `mutations`, `result_digest`, `capture_keys`, ..."""


async def read_training_rows(
    address: str | None = None, *, batch_rows: int = 256, timeout_s: float = 10.0
) -> AsyncIterator[FinishedRollout]:
    """Read every training row that is there now, in the order of rollout ids.

    Joins Ray as a driver, unless this process is in a cluster already: then that one is read. A
    cluster on loopback needs `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` before Ray is imported; Ray
    would use the machine's own address otherwise.

    Args:
        address: `host:port` of the job's Ray cluster; the variable `RAY_ADDRESS` by default.
        batch_rows: Most rows in memory at once.
        timeout_s: Seconds to wait for TransferQueue.

    Yields:
        One row per finished rollout.

    Raises:
        RayUnreachable: No address is given, or no cluster answers there.
        DataPlaneLost: The cluster has no TransferQueue: no job runs there.
        DigestMismatch: A row is not the one that was stored; `details["key"]` names its rollout.
        ValueError: `batch_rows` is below 1.
    """
    if batch_rows < 1:
        raise ValueError("batch_rows: at least 1")
    # They import Ray and torch, for seconds: not with this package.
    from rl.actors import attached
    from rl.data_plane.transfer_queue import DataPlane

    await attached(address)
    plane = await DataPlane.attach(timeout_s)
    keys = sorted(await plane.keys(TRAINING))
    for start in range(0, len(keys), batch_rows):
        rows = await plane.get_training(keys[start : start + batch_rows])
        for rollout_id, (row, tag) in rows.items():
            yield FinishedRollout(
                rollout_id=rollout_id,
                attempt_index=tag["attempt_index"],
                token_ids=np.asarray(row.token_ids, dtype=np.int32),
                token_mask=np.asarray(row.token_mask, dtype=np.int32),
                log_probs=np.asarray(row.log_probs, dtype=np.float32),
                reward=row.reward,
                verify_answer=json.loads(row.result),
                tag=tag,
            )
