"""The supervisor's loop: back-off, giving up, what it tells. Looks and starts are given."""

from __future__ import annotations

import pytest

from tests.workers.observations import GYM, WELL, observation
from tests.workers.supervisor.given import FINISHED, Given
from workers.errors import Stopped
from workers.supervisor.decide import UNHEARD_S


async def test_a_server_that_the_stack_cannot_start_is_told_of_once_an_outage(given: Given) -> None:
    """Break: tell at each look, or only the first outage."""
    silent = observation(unheard_s={"counter": UNHEARD_S + 1})
    looks = iter([WELL, silent, silent, WELL, silent, FINISHED])
    await given.run(lambda _: next(looks))
    gone = [line for line in given.told if "does not answer" in line]
    assert len(gone) == 2
    assert "counter at http://127.0.0.1:1" in gone[0]
    assert "--expect-restore true" in gone[0] and "command" in gone[0]
    assert given.told[1] == "counter answers again"
    assert given.event_log.reasons == []
    assert given.began == []


async def test_a_stack_that_was_stopped_ends_the_supervision(given: Given) -> None:
    with pytest.raises(Stopped, match="turnpoint down"):
        await given.run(lambda _: observation(stopped=True, gone=GYM))
    assert given.began == []
