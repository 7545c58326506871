"""The rows that a twin run rolls out: one of each sort in turn, for every agent of its fleet.

Guarantees: the expected count of every counting prompt is what the script brings its first
generation to, so a lost or repeated step shows as a wrong reward, besides a wrong count and
other tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl.policies.scripted import Script
from tests.gym.gymnasium_fleet import rows_of
from tests.twin.fleet import DICE, PLAYER, TOOLS, WRITER
from tests.twin.rows import counted, rollout_ids, tool

SCRIPT = Script(turns=2, turns_spread=5, delay_s=0.25)
SORTS = ("tools", "dice", "essay", "taxi", "blackjack", "tools", "cliff_walking", "frozen_lake")
"""The prompts' sorts, repeated in this order."""


def write_mixed_rows(path: Path, prompts: int) -> None:
    """Write a dataset of NeMo Gym rows, one of each sort in turn."""
    path.write_text("".join(f"{json.dumps(_row(number))}\n" for number in range(prompts)))


def sort_of(number: int) -> str:
    """The sort of prompt `number`."""
    return SORTS[number % len(SORTS)]


def require_complete(rows: dict[str, dict[str, Any]], prompts: int) -> None:
    """Require that the undisturbed job, the reference of all comparisons, is complete itself.

    Raises:
        AssertionError: A row is missing, a rollout has failed or called nothing (the same is no
            proof then), or the script does not count as expected.
    """
    assert set(rows) == rollout_ids(prompts)
    empty = [name for name, row in rows.items() if not row["tag"]["turns"] or not row["token_ids"]]
    failed = [name for name, row in rows.items() if row["reward"] is None]
    assert not empty and not failed, f"undisturbed, and yet nothing to compare: {empty}, {failed}"
    counted = [f"p{number}_g0" for number in range(prompts) if sort_of(number) == "tools"]
    assert all(rows[name]["reward"] == 1 for name in counted), "the script does not count right"


def _row(number: int) -> dict[str, Any]:
    sort = sort_of(number)
    increment = tool("increment_counter", count="integer")
    match sort:
        case "tools":
            tools = [increment, tool("get_counter_value"), tool("get_weather", city="string")]
            return _counting(number, TOOLS, tools)
        case "dice":
            return _counting(number, DICE, [increment, tool("roll_die")])
        case "essay":
            return _counting(number, WRITER, [tool("write_paragraph", text="string")])
    return rows_of(sort)[number % 2] | _for(PLAYER)


def _counting(number: int, agent: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": f"prompt {number}: use the tools as you like"}],
            "tools": tools,
        },
        "initial_count": number,
        "expected_count": number + counted(SCRIPT, f"p{number}_g0", tools),
        **_for(agent),
    }


def _for(agent: str) -> dict[str, Any]:
    return {"agent_ref": {"type": "responses_api_agents", "name": agent}}


def wrongly_over(rollout: str, reason: str | None) -> str | None:
    """A sentence about a rollout that a restore started over without a valid reason, or None."""
    sort = sort_of(int(rollout[1:].partition("_")[0]))
    rightly = {"used dice, which is restart_only"} if sort == "dice" else set()
    if reason in rightly | {"its run had failed"}:
        return None
    return f"{rollout} ({sort}) started over: {reason}"
