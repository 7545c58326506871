"""The training row of one rollout, and its conversation."""

from __future__ import annotations

import json
from typing import Any

from rl.data_plane.rows import TrainingRow

ROLLOUT = "p0_g1"


CALLS = [("increment_counter", 2), ("increment_counter", 3), ("get_counter_value", None)]


def conversation(value: int = 8) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for number, (name, count) in enumerate(CALLS):
        arguments = json.dumps({} if count is None else {"count": count})
        answer: dict[str, Any] = {"success": True} if count is not None else {"count": value}
        call = {"call_id": str(number), "name": name, "arguments": arguments}
        items.append({"type": "function_call", **call})
        output = {"call_id": str(number), "output": json.dumps(answer)}
        items.append({"type": "function_call_output", **output})
    return {"initial_count": 3, "response": {"output": items}}


def training_rows(
    revision: int = 5, value: int = 8
) -> dict[str, tuple[TrainingRow, dict[str, Any]]]:
    row = TrainingRow([1], [1], [0.0], 1.0, json.dumps(conversation(value)).encode())
    return {ROLLOUT: (row, {"attempt_index": 1, "mutations": revision, "rollout_id": ROLLOUT})}
