"""Reading training rows as a trainer does, with TransferQueue played by the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import ray

from rl import actors
from rl.data_plane import FinishedRollout, read_training_rows, transfer_queue
from rl.data_plane.rows import TrainingRow
from rl.errors import DataPlaneLost, RayUnreachable

TAG = {"attempt_index": 2, "turns": 3}


class Plane:
    """Three rows; the second is cleared before it is read."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        row = TrainingRow([5, 6, 7], [0, 1, 1], [0.0, -0.5, -0.25], 1.5, b'{"reward": 1.5}')
        failed = TrainingRow([], [], [], None, b'{"failed": "server_fault"}')
        self.rows = {"p0_g0": row, "p0_g1": None, "p1_g0": failed}

    async def keys(self, partition: str) -> set[str]:
        assert partition == "rollout_data"
        return set(self.rows)

    async def get_training(self, keys: Iterable[str]) -> dict[str, Any]:
        self.asked.append(list(keys))
        return {key: (row, TAG) for key in keys if (row := self.rows[key]) is not None}


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    plane = Plane()
    joined: list[str | None] = []

    async def attached(address: str | None = None) -> None:
        joined.append(address)

    async def attach(timeout_s: float = 60.0) -> Plane:
        assert joined == ["127.0.0.1:6379"]
        return plane

    monkeypatch.setattr(actors, "attached", attached)
    monkeypatch.setattr(transfer_queue.DataPlane, "attach", attach)
    return plane


async def read(**words: Any) -> list[FinishedRollout]:
    return [row async for row in read_training_rows("127.0.0.1:6379", **words)]


async def test_rows_are_typed_arrays_of_one_length(plane: Plane) -> None:
    row, failed = await read()
    assert (row.rollout_id, row.attempt_index, row.reward, row.tag) == ("p0_g0", 2, 1.5, TAG)
    assert (row.token_ids.dtype, row.token_mask.dtype) == (np.int32, np.int32)
    assert row.log_probs.dtype == np.float32
    assert row.token_ids.shape == row.token_mask.shape == row.log_probs.shape == (3,)
    assert (row.token_ids.tolist(), row.token_mask.tolist()) == ([5, 6, 7], [0, 1, 1])
    assert row.log_probs.tolist() == [0.0, -0.5, -0.25]
    assert row.verify_answer == {"reward": 1.5}
    assert (failed.reward, failed.token_ids.shape) == (None, (0,))
    assert failed.verify_answer == {"failed": "server_fault"}


async def test_batches_are_bounded_and_in_order(plane: Plane) -> None:
    """Break: rl/data_plane/training_rows.py: ask for all keys at once."""
    assert len(await read(batch_rows=2)) == 2
    assert plane.asked == [["p0_g0", "p0_g1"], ["p1_g0"]]
    with pytest.raises(ValueError, match="batch_rows"):
        await read(batch_rows=0)


async def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RayUnreachable, match="RAY_ADDRESS"):
        [row async for row in read_training_rows()]
    with pytest.raises(RayUnreachable):
        [row async for row in read_training_rows("127.0.0.1:1")]


async def test_a_cluster_without_a_job_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise ValueError("no such actor")

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", none)
    with pytest.raises(DataPlaneLost, match="no job runs"):
        [row async for row in read_training_rows(timeout_s=0.01)]


def test_the_package_imports_neither_ray_nor_torch() -> None:
    program = "import sys, json, rl.data_plane; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert not {"ray", "torch", "transfer_queue"} & set(loaded)
