"""One save or restore: its calls happen once, and end with it."""

from __future__ import annotations

import pytest

from gym.checkpoint.operation import Operation
from gym.protocol import RequestConflict, StaleCheckpoint


async def test_a_call_happens_once_and_another_body_names_id_and_call() -> None:
    operation, runs = Operation("ck"), list[int]()

    async def work() -> int:
        runs.append(1)
        return len(runs)

    assert await operation.once("commit", "a", work) == 1
    assert await operation.once("commit", "a", work) == 1
    assert await operation.once("prepare", None, work, record=lambda _: False) == 2
    assert await operation.once("prepare", None, work) == 3
    with pytest.raises(RequestConflict) as refused:
        await operation.once("commit", "b", work)
    assert refused.value.details == {"id": "ck", "call": "commit"}


def test_an_ended_operation_refuses_by_its_id() -> None:
    operation = Operation("ck")
    operation.require_not_ended()
    operation.ended.set()
    with pytest.raises(StaleCheckpoint, match="ck has ended here"):
        operation.require_not_ended()
