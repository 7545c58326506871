"""Calls in flight: each is counted, and those that block are named."""

from __future__ import annotations

from pathlib import Path

from gym.protocol import (
    Phase,
)
from tests.gym.parts import participant_in


async def test_two_identical_calls_are_two_in_flight(tmp_path: Path) -> None:
    participant, _, _ = await participant_in(Phase.OPEN, tmp_path)
    with (
        participant.phases.calls.count(None, "tool"),
        participant.phases.calls.count(None, "tool", blocks=False),
    ):
        assert participant.save.counts().in_flight == 2
        assert len(participant.save.blockers()) == 1
    assert participant.save.counts().in_flight == 0
