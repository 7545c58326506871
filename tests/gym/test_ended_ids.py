"""Ended ids: the newest 1,024 are remembered, each with something that is known of it."""

from __future__ import annotations

import pytest

from gym.ended_ids import EndedIds
from gym.protocol import StaleCheckpoint


def test_the_newest_1024_ids_are_remembered() -> None:
    """Break: gym/ended_ids.py: leave out the loop that drops the oldest."""
    ended = EndedIds(lambda: None, participant="server")
    for number in range(1024):
        ended.add(f"save-{number}")
    for known in ("save-0", "save-1023"):
        with pytest.raises(StaleCheckpoint, match=f"{known} has ended here") as refused:
            ended.require_not_ended(known)
        assert refused.value.participant == "server"
    ended.add("one-more")
    ended.require_not_ended("save-0")
    with pytest.raises(StaleCheckpoint):
        ended.require_not_ended("save-1")


def test_an_id_that_ends_again_counts_as_new_and_keeps_what_is_known_of_it() -> None:
    ended: EndedIds[list[str]] = EndedIds(list)
    ended.add("first").append("paused 2 s")
    for number in range(1023):
        ended.add(f"save-{number}")
    assert ended.add("first") == ["paused 2 s"]
    ended.add("one-more")
    assert "first" in ended and "save-0" not in ended
