"""The resource server's mutations in its log, and those of them that were applied twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from gym.protocol import Continuation, capture_key
from rl.data_plane.rows import TrainingRow
from workers.config.settings import Settings

RESOURCE = "counter"
Rows = dict[str, tuple[TrainingRow, dict[str, Any]]]
"""The training rows with their tags, by rollout."""


class Mutation(BaseModel):
    """One effective mutation, as the resource server logged it."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    attempt: int
    request_id: str
    revision: int

    @property
    def place(self) -> str:
        """The request id without the run: the same step of another run has the same place."""
        return self.request_id.removeprefix(capture_key(self.rollout_id, self.attempt) + "/")

    @property
    def call(self) -> int | None:
        """Index of the model call whose step it is; None for seed and verify."""
        name, _, index = self.place.partition("/")[0].partition("-")
        return int(index) if name == "call" else None


def mutations(settings: Settings) -> list[Mutation]:
    """Every effective mutation of all lives of the resource server, in order."""
    return [
        Mutation.model_validate({name: line[name] for name in Mutation.model_fields})
        for line in log_lines(settings, RESOURCE)
        if line.get("event") == "mutation"
    ]


def log_lines(settings: Settings, name: str) -> Iterator[dict[str, Any]]:
    """The JSON lines in the log of a process of the stack."""
    path = settings.state_dir / "logs" / f"{name}.log"
    if not path.exists():
        return
    with path.open(errors="replace") as file:
        for line in file:
            # Skips a line that SIGKILL cut in half, or that is not the server's own.
            if line.startswith("{") and line.endswith("}\n"):
                yield json.loads(line)


def repeated(log: list[Mutation], saved: dict[str, Continuation], rows: Rows) -> int:
    """Number of mutations that took effect twice on the state that a rollout ended with.

    The state of a rollout's last run comes from the mutations of that run and, if it was
    continued, from the earlier ones up to the saved revision. Counted are: a place that is
    there twice; a revision above the number of places; and a counter value in the conversation
    that its increments do not explain.
    """
    count = 0
    for rollout_id, (row, tag) in rows.items():
        last = tag["attempt_index"]
        kept = 0
        if rollout_id in saved and last > saved[rollout_id].attempt_index:
            kept = saved[rollout_id].resource_state_revisions.get(RESOURCE) or 0
        line = [
            mutation.place
            for mutation in log
            if mutation.rollout_id == rollout_id
            and (mutation.attempt == last or mutation.revision <= kept)
        ]
        places = set(line)
        count += len(line) - len(places)
        count += max(0, tag["mutations"] - len(places))
        count += unexplained(json.loads(row.result))
    return count


def unexplained(result: dict[str, Any]) -> int:
    """Number of counter values in a conversation that differ from the sum of its increments."""
    count = result["initial_count"]
    calls: dict[str, dict[str, Any]] = {}
    wrong = 0
    for item in result["response"]["output"]:
        if item["type"] == "function_call":
            calls[item["call_id"]] = item
        elif item["type"] == "function_call_output":
            call = calls[item["call_id"]]
            answer = _json(item["output"])
            if call["name"] == "increment_counter" and answer.get("success"):
                count += json.loads(call["arguments"])["count"]
            elif call["name"] == "get_counter_value" and "count" in answer:
                wrong += answer["count"] != count
    return wrong


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}  # an environment's refusal in plain words: nothing was counted
    return found if isinstance(found, dict) else {}
