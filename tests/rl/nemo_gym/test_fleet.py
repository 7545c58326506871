"""Calls to all servers of a kind: repeated, bounded, cancelled with their phase."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gym.client import GymClient
from gym.protocol import (
    Kind,
    NotReady,
)
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet, lease_left

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


async def test_status_leaves_out_who_does_not_answer(fakes: FakeFleet, fleet: Fleet) -> None:
    await fakes["agent_a"].stop()
    found = await fleet.statuses()
    assert {status.server for status in found} == set(fakes.servers) - {"agent_a"}


async def test_a_failure_that_passes_is_met_by_the_same_call_again(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes["agent_a"].fail("commit", NotReady("writer"), NotReady("writer"))
    await save_phases.prepare(fleet, CHECKPOINT, 5, lease_left)
    started = time.monotonic()
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/s"), lease_left)
    assert len(fakes.bodies("commit", "agent_a")) == 3
    assert 0.1 < time.monotonic() - started < 1


async def test_servers_get_what_is_left_of_the_budget(fakes: FakeFleet, fleet: Fleet) -> None:
    """Invariant 3. Break: rl/nemo_gym/save.py: ask with `lease_s=30.0` in `prepare`; seen red."""
    fakes["policy_model"].hang("prepare", 0.5)
    await save_phases.prepare(fleet, CHECKPOINT, 4, lease_left)
    (model,) = fakes.bodies("prepare", "policy_model")
    (resource,) = fakes.bodies("prepare", "counter")
    assert 3.0 < model["budget_s"] < 4
    assert resource["budget_s"] < 3.5
    assert resource["lease_s"] == 5


async def test_a_server_without_control_routes_is_never_asked(
    fakes: FakeFleet, client: GymClient
) -> None:
    servers = [
        server.model_copy(update={"instance_id": None}) if server.name == "tools" else server
        for server in fakes.joined()
    ]
    fleet = Fleet(client, servers, 1)
    await save_phases.prepare(fleet, CHECKPOINT, 5, lease_left)
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/s"), lease_left)
    await save_phases.confirm_held(fleet, CHECKPOINT)
    await save_phases.resume_servers(client, servers, 1, CHECKPOINT)
    assert "tools" not in {asked.server for asked in fakes.journal}


async def test_no_call_goes_on_after_a_phase_was_cancelled(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["policy_model"].hang("prepare", 0.3)
    task = asyncio.create_task(save_phases.prepare(fleet, CHECKPOINT, 5, lease_left))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.4)
    assert fakes.kinds("prepare") == [Kind.MODEL]
