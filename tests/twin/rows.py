"""The rows that a twin run rolls out, and what must be equal in what comes of them.

Guarantees: the expected count of every prompt is what the script brings its first generation to,
so a lost or repeated step shows as a wrong reward, besides a wrong count and other tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl.scripted_policy import Script

GENERATIONS = 2
SCRIPT = Script(turns=3, turns_spread=6, delay_s=0.3)
_FREE = ("attempt_index", "capture_keys", "result_digest")
"""Which run it was may differ; the digest is over a result that is compared itself."""


def write_rows(path: Path, prompts: int, script: Script = SCRIPT) -> None:
    """Write a dataset of NeMo Gym rows for the counter."""
    path.write_text("".join(f"{json.dumps(_row(number, script))}\n" for number in range(prompts)))


def rollout_ids(prompts: int) -> set[str]:
    """Every rollout of the dataset."""
    return {f"p{k}_g{j}" for k in range(prompts) for j in range(GENERATIONS)}


def tools_asked(script: Script, rollout_id: str, call: int) -> list[dict[str, Any]]:
    """The tool calls that a model call of the script answers with these rows."""
    message = script.message(rollout_id, call, _CHAT_TOOLS)
    return list(message.get("tool_calls", []))


def _row(number: int, script: Script) -> dict[str, Any]:
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": f"prompt {number}: count as you like"}],
            "tools": _TOOLS,
        },
        "initial_count": number,
        "expected_count": number + _counted(script, f"p{number}_g0"),
    }


def _counted(script: Script, rollout_id: str) -> int:
    """What the script adds in a rollout."""
    total = 0
    for call in range(script.turns_of(rollout_id)):
        for made in tools_asked(script, rollout_id, call):
            total += json.loads(made["function"]["arguments"]).get("count", 0)
    return total


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": "",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": properties,
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


def repeated(lines: list[dict[str, Any]]) -> list[str]:
    """Request ids of mutations that took effect twice in one life of their server.

    Args:
        lines: The server's log lines about joins and mutations, in order.
    """
    seen: set[str] = set()
    twice: list[str] = []
    for line in lines:
        if line["event"] == "control":
            seen = set()
        elif line["request_id"] in seen:
            twice.append(f"{line['request_id']}: took effect twice")
        else:
            seen.add(line["request_id"])
    return twice
