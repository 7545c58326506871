"""Admission and identity: which calls a server lets in, and when it opens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gym.checkpoint.phases import Phases
from gym.protocol import (
    CheckpointConflict,
    CheckpointParked,
    Identity,
    IdentityMismatch,
    InvalidPhase,
    NotJoined,
    Phase,
    StaleAttempt,
)
from tests.gym.parts import participant_in


async def test_identity_is_refused_before_join_of_another_incarnation_and_malformed(
    tmp_path: Path,
) -> None:
    """Invariant 7. Break: gym/checkpoint/phases.py: identify calls of any incarnation.

    Seen red.
    """
    closed, _, _ = await participant_in(Phase.CLOSED, tmp_path)
    headers = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).headers()
    with pytest.raises(NotJoined):
        closed.phases.identify(headers)
    with pytest.raises(NotJoined):
        closed.phases.require_open()
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    assert participant.phases.identify({}) is None
    assert participant.phases.identify(headers) is not None
    with pytest.raises(StaleAttempt):
        participant.phases.identify(headers | {"x-turnpoint-incarnation": "2"})
    with pytest.raises(IdentityMismatch):
        participant.phases.identify({"x-turnpoint-incarnation": "1"})
    await participant.save.prepare(caller.prepare())
    with pytest.raises(CheckpointParked):
        participant.phases.require_open()
    waiting = asyncio.ensure_future(participant.phases.wait_open())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    participant.save.resume(caller.resume())
    await asyncio.wait_for(waiting, 1)


async def test_the_next_opening_is_seen_though_the_server_is_open_now(tmp_path: Path) -> None:
    """An agent whose call another server refused waits for it. Break: return while it is open."""
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    waiting = asyncio.ensure_future(participant.phases.next_opening(10))
    await participant.save.prepare(caller.prepare())
    assert not waiting.done()
    participant.save.resume(caller.resume())
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(participant.phases.next_opening(0.01), 1)


async def test_a_change_between_two_steps_of_the_loop_is_seen(tmp_path: Path) -> None:
    """Break: gym/checkpoint/phases.py: wait for an event that `changed` sets and clears."""
    participant, _, _ = await participant_in(Phase.OPEN, tmp_path)
    waiting = asyncio.ensure_future(participant.phases.change(10))
    await asyncio.sleep(0)
    participant.phases.changed()
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(participant.phases.change(0.01), 1)


def test_a_call_that_meets_a_closed_server_is_told_the_phase_and_the_owner() -> None:
    phases = Phases("counter")
    assert isinstance(phases.parked(), NotJoined)
    phases.incarnation = 1
    phases.begin("ck", Phase.PREPARING)
    assert phases.parked().details == {"phase": "preparing", "checkpoint_id": "ck"}
    with pytest.raises(CheckpointConflict):
        phases.require_operation("other", [Phase.PREPARING])
    with pytest.raises(InvalidPhase):
        phases.require_operation("ck", [Phase.PREPARED])
