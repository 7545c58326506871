"""A phase ends when a server is silent for a lease, whatever the others do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gym.protocol import (
    NotReady,
)
from rl.errors import NotHeld
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


async def test_a_server_that_dies_while_agents_are_waited_for_is_named_within_a_lease(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    """Break: wait for the kinds one after the other alone: the agents repeat its steps for ever."""
    fakes["agent_a"].hang("prepare")
    await fakes["counter"].stop()
    began = time.monotonic()
    with pytest.raises(NotReady, match="first on counter: no_answer") as refused:
        await save_phases.prepare(fleet, CHECKPOINT, 60, lambda: 1.0)
    assert time.monotonic() - began < 10
    assert [blocker["server"] for blocker in refused.value.details["blockers"]] == ["counter"]
    assert fakes.asked("prepare").count("agent_a") == 1
    assert "tools" not in fakes.asked("prepare")


@pytest.mark.parametrize("silent", ["policy_model", "agent_b"])
async def test_any_server_that_stands_still_is_named_within_a_lease(
    fakes: FakeFleet, fleet: Fleet, silent: str
) -> None:
    """It has lost its lease: the others would stand still for a save that cannot be published.

    Break: rl/nemo_gym/save.py: look at servers of later kinds alone, or not while all commit.
    """
    for operation in ("prepare", "commit"):
        fakes["agent_a"].hang(operation)
    fakes["agent_b"].hang("prepare")
    fakes["agent_b"].hang("commit")
    fakes[silent].hang("status")
    began = time.monotonic()
    with pytest.raises(NotReady, match=f"first on {silent}: no_answer"):
        await save_phases.prepare(fleet, CHECKPOINT, 60, lambda: 1.0)
    with pytest.raises(NotHeld, match=f"first {silent}") as lost:
        await save_phases.commit(fleet, CHECKPOINT, 60, Path("/s"), lambda: 1.0)
    assert lost.value.details["servers"] == {silent: "server_unreachable"}
    assert time.monotonic() - began < 15
