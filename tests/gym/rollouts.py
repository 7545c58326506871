"""Rollouts of a fleet, parked in the middle, and the files that their save answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gym.protocol import (
    CommitAnswer,
    WrittenFile,
)
from tests.gym.fleet import AGENT, COUNTER, MODEL, NAMES, Fleet


def files_of(answers: dict[str, CommitAnswer]) -> dict[str, list[WrittenFile]]:
    return {name: answers[name].files for name in NAMES}


def items_of(saved: Path) -> list[dict[str, Any]]:
    lines = (saved / "gym" / AGENT / "agent_state.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


async def parked_at(fleet_: Fleet, call: int, *rollouts: str) -> list[asyncio.Task[Any]]:
    """Start rollouts and prepare while they wait for call `call`: they park before the next."""
    generation = fleet_.generation
    await generation.hold_from(call)
    runs = [asyncio.create_task(fleet_.run(rollout)) for rollout in rollouts]
    await generation.until_waiting(f"call-{call}", len(rollouts))
    closing = asyncio.create_task(fleet_.prepare(MODEL))
    await asyncio.sleep(0.05)
    await generation.hold_from(None)
    assert (await closing).ready
    for name in (AGENT, COUNTER):
        assert (await fleet_.prepare(name)).ready
    return runs
