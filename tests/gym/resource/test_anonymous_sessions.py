"""Sessions of callers without identity: the newest are kept, without receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.weather import Weather
from gym.checkpoint.participant import Participant
from gym.checkpoint.phases import Phases
from gym.protocol import (
    IdentityMismatch,
    JoinRequest,
    SessionLost,
)
from gym.resource.anonymous_sessions import AnonymousSessions
from gym.resource.part import ResourcePart


def test_the_newest_sessions_are_kept() -> None:
    """Break: let them grow without end."""
    sessions = AnonymousSessions(most=2)
    first, second = sessions.begin(seeded=True), sessions.begin(seeded=True)
    assert sessions.of(first.id, []) is first  # used again: the other is the older one now
    sessions.begin(seeded=True)
    assert first.id in sessions
    with pytest.raises(SessionLost):
        sessions.of(second.id, [])
    with pytest.raises(IdentityMismatch):
        sessions.of(second.id, [second.id])


async def test_a_session_without_identity_keeps_no_receipts(tmp_path: Path) -> None:
    """A client may keep its cookie for good. Break: gym/resource/part.py: forget none of them."""
    phases = Phases("weather")
    part = ResourcePart(phases, Weather())
    participant = Participant(phases, part, tmp_path)
    await participant.join(JoinRequest(job_id="job", incarnation=1))

    async def tool(_: object) -> dict[str, str]:
        return {"city": "cold"}

    session, receipt = await part.mutate_anonymous("tool", "0" * 64, tool, cookie=None)
    assert (receipt.status, receipt.answer) == (200, '{"city": "cold"}')
    again, _ = await part.mutate_anonymous("tool", "0" * 64, tool, cookie=session.id)
    assert again is session
    assert (session.revision, session.receipts) == (2, [])
