"""Rows for the counter, and the comparison of the training rows of two runs of a job.

Guarantees: the expected count of every prompt is what the script brings its first generation to,
so a lost or repeated step shows as a wrong reward, besides a wrong count and other tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.policies.scripted import Script

GENERATIONS = 2
_FREE = ("attempt_index", "capture_keys", "result_digest")
"""Run numbers may differ; the digest covers the result, which is compared itself."""


def write_rows(path: Path, prompts: int, script: Script) -> None:
    """Write a dataset of NeMo Gym rows for the counter."""
    path.write_text("".join(f"{json.dumps(_row(number, script))}\n" for number in range(prompts)))


def rollout_ids(prompts: int) -> set[str]:
    """Every rollout of the dataset."""
    return {f"p{k}_g{j}" for k in range(prompts) for j in range(GENERATIONS)}


def tools_asked(
    script: Script, rollout_id: str, call: int, tools: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The tool calls that a model call of the script answers; by default with these rows' tools."""
    chat = [
        {"function": {key: tool[key] for key in ("name", "parameters")}}
        for tool in tools or _COUNTING
    ]
    return list(script.message(rollout_id, call, chat).get("tool_calls", []))


def counted(script: Script, rollout_id: str, tools: Sequence[dict[str, Any]] = ()) -> int:
    """The sum that the script adds in a rollout."""
    total = 0
    for call in range(script.turns_of(rollout_id)):
        for made in tools_asked(script, rollout_id, call, tools):
            total += json.loads(made["function"]["arguments"]).get("count", 0)
    return total


def tool(name: str, **properties: str) -> dict[str, Any]:
    """A tool as rows offer it; each property with its type."""
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


_COUNTING = [tool("increment_counter", count="integer"), tool("get_counter_value")]


def _row(number: int, script: Script) -> dict[str, Any]:
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": f"prompt {number}: count as you like"}],
            "tools": _COUNTING,
        },
        "initial_count": number,
        "expected_count": number + counted(script, f"p{number}_g0"),
    }


def differences(
    undisturbed: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]
) -> list[str]:
    """One sentence for each thing that differs between the rows of two jobs; values not shown."""
    sentences = [f"{rollout}: no row" for rollout in sorted(undisturbed.keys() - found.keys())]
    sentences += [
        f"{rollout}: an extra row" for rollout in sorted(found.keys() - undisturbed.keys())
    ]
    for rollout in sorted(undisturbed.keys() & found.keys()):
        one, other = _comparable(undisturbed[rollout]), _comparable(found[rollout])
        sentences += [
            f"{rollout}: {key} differs"
            for key in sorted(one.keys() | other.keys())
            if one.get(key) != other.get(key)
        ]
    return sentences


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    tag = {f"tag.{key}": value for key, value in row["tag"].items() if key not in _FREE}
    return {**{key: value for key, value in row.items() if key != "tag"}, **tag}


def sent_too_often(
    runs: dict[str, int], begun_at: dict[str, int], failed: Mapping[str, int]
) -> list[str]:
    """Rollouts that were sent again without a restore or a failed run.

    Args:
        runs: The newest run of each rollout.
        begun_at: The run that each was at when this execution of the job began; 0 by default.
        failed: Failed runs of this execution, by rollout.
    """
    return [
        f"{rollout}: sent again without a restore or a failed run"
        for rollout, run in runs.items()
        if run > begun_at.get(rollout, 0) + failed.get(rollout, 0)
    ]


def repeated(lines: list[dict[str, Any]]) -> list[str]:
    """Request ids of mutations that took effect twice between two starts of their server.

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
