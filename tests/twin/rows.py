"""The rows that a twin run rolls out, and what must be equal in what comes of them.

Guarantees: the expected count of every counting prompt is what the script brings its first
generation to, so a lost or repeated step shows as a wrong reward, besides a wrong count and
other tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.scripted_policy import Script
from tests.gym.test_gymnasium_agent import rows_of
from tests.twin.fleet import DICE, PLAYER, TOOLS, WRITER

GENERATIONS = 2
SCRIPT = Script(turns=2, turns_spread=5, delay_s=0.25)
SORTS = ("tools", "dice", "essay", "taxi", "blackjack", "tools", "cliff_walking", "frozen_lake")
"""Of the prompts, over and over."""
_FREE = ("attempt_index", "capture_keys", "result_digest")
"""Which run it was may differ; the digest is over a result that is compared itself."""


def write_rows(path: Path, prompts: int) -> None:
    """Write a dataset of NeMo Gym rows, one of each sort in turn."""
    path.write_text("".join(f"{json.dumps(_row(number))}\n" for number in range(prompts)))


def rollout_ids(prompts: int) -> set[str]:
    """Every rollout of the dataset."""
    return {f"p{k}_g{j}" for k in range(prompts) for j in range(GENERATIONS)}


def sort_of(number: int) -> str:
    """What prompt `number` is about."""
    return SORTS[number % len(SORTS)]


def demand_whole(rows: dict[str, dict[str, Any]], prompts: int) -> None:
    """The undisturbed job is the measure: it must be whole itself.

    Raises:
        AssertionError: A row is missing, or the script does not count as expected.
    """
    assert set(rows) == rollout_ids(prompts)
    counted = [f"p{number}_g0" for number in range(prompts) if sort_of(number) == "tools"]
    assert all(rows[name]["reward"] == 1 for name in counted), "the script does not count right"


def _row(number: int) -> dict[str, Any]:
    sort = sort_of(number)
    increment = _tool("increment_counter", count="integer")
    match sort:
        case "tools":
            tools = [increment, _tool("get_counter_value"), _tool("get_weather", city="string")]
            return _counting(number, TOOLS, tools)
        case "dice":
            return _counting(number, DICE, [increment, _tool("roll_die")])
        case "essay":
            return _counting(number, WRITER, [_tool("write_paragraph", text="string")])
    return rows_of(sort)[number % 2] | _for(PLAYER)


def _counting(number: int, agent: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": f"prompt {number}: use the tools as you like"}],
            "tools": tools,
        },
        "initial_count": number,
        "expected_count": number + _counted(f"p{number}_g0", tools),
        **_for(agent),
    }


def _for(agent: str) -> dict[str, Any]:
    return {"agent_ref": {"type": "responses_api_agents", "name": agent}}


def _counted(rollout_id: str, tools: list[dict[str, Any]]) -> int:
    """What the script adds in a rollout."""
    total = 0
    for call in range(script.turns_of(rollout_id)):
        for made in tools_asked(script, rollout_id, call):
            total += json.loads(made["function"]["arguments"]).get("count", 0)
    return total


def _tool(name: str, **properties: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": "",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        },
    }


_TOOLS = [
    _tool("increment_counter", {"count": {"type": "integer", "description": ""}}),
    _tool("get_counter_value", {}),
]
_CHAT_TOOLS = [{"function": {key: tool[key] for key in ("name", "parameters")}} for tool in _TOOLS]


def differences(
    undisturbed: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]
) -> list[str]:
    """One sentence for each thing that differs between the rows of two jobs; values not shown."""
    told = [f"{rollout}: no row" for rollout in sorted(undisturbed.keys() - found.keys())]
    told += [f"{rollout}: a row too much" for rollout in sorted(found.keys() - undisturbed.keys())]
    for rollout in sorted(undisturbed.keys() & found.keys()):
        one, other = _comparable(undisturbed[rollout]), _comparable(found[rollout])
        told += [
            f"{rollout}: {key} differs"
            for key in sorted(one.keys() | other.keys())
            if one.get(key) != other.get(key)
        ]
    return told


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    tag = {f"tag.{key}": value for key, value in row["tag"].items() if key not in _FREE}
    return {**{key: value for key, value in row.items() if key != "tag"}, **tag}


def sent_too_often(
    runs: dict[str, int], begun_at: dict[str, int], failed: Mapping[str, int]
) -> list[str]:
    """Rollouts that were sent again without a restore or a failed run.

    Args:
        runs: The newest run of each rollout.
        begun_at: The run that each was at when this life of the job began; 0 by default.
        failed: Failed runs of this life, by rollout.
    """
    return [
        f"{rollout}: sent again without a restore or a failed run"
        for rollout, run in runs.items()
        if run > begun_at.get(rollout, 0) + failed.get(rollout, 0)
    ]


def wrongly_over(rollout: str, reason: str | None) -> str | None:
    """A sentence about a rollout that a restore let start over, if it had no right to."""
    sort = sort_of(int(rollout[1:].partition("_")[0]))
    rightly = {"used dice, which is restart_only"} if sort == "dice" else set()
    if reason in rightly | {"its run had failed"}:
        return None
    return f"{rollout} ({sort}) started over: {reason}"


def repeated(lines: list[dict[str, Any]]) -> list[str]:
    """Request ids of mutations that took effect twice in one life of their server.

    Args:
        lines: The servers' log lines about joins and mutations, in order.
    """
    seen: dict[str, set[str]] = {}
    twice: list[str] = []
    for line in lines:
        server = str(line["served_by"])
        if line["event"] == "control":
            seen[server] = set()
        elif line["request_id"] in seen.setdefault(server, set()):
            twice.append(f"{line['request_id']}: took effect twice on {server}")
        else:
            seen[server].add(line["request_id"])
    return twice
