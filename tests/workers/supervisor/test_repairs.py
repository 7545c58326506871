"""Processes without state are started again under the live job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.observations import WELL, observation
from tests.workers.supervisor.given import FINISHED, Given
from workers.errors import ProcessFailed, Stopped
from workers.job.restarts import Restarter


async def test_a_process_without_state_is_started_under_the_live_job(given: Given) -> None:
    looks = iter([observation(gone={"worker_1"}), WELL, WELL, WELL, FINISHED])
    await given.run(lambda _: next(looks))
    assert given.began == []
    assert given.started == [("worker_1",)]
    assert (given.event_log.restarts, given.event_log.restores) == (1, 0)


async def test_a_start_that_fails_is_tried_again_after_a_printed_wait(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: workers/supervisor/repairs.py: let the error of a try rise."""
    errors = iter([ProcessFailed("no room\nsecond line"), ProcessFailed("no room")])

    async def restart(*_: Any, **__: Any) -> None:
        if (error := next(errors, None)) is not None:
            raise error

    monkeypatch.setattr(Restarter, "restart", restart)
    gone = observation(gone={"worker_1"})
    await given.run(lambda _: FINISHED if given.event_log.restarts else gone)
    tries = [line for line in given.told if line.startswith("process_failed")]
    assert tries == [f"process_failed: no room; again in {wait} s" for wait in ("0.001", "0.002")]
    assert [event.processes for event in given.event_log.events] == [["worker_1"]]


async def test_a_stack_that_is_ended_meanwhile_ends_the_supervision(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: workers/supervisor/repairs.py: try again after `Stopped` too."""

    async def restart(*_: Any, **__: Any) -> None:
        raise Stopped("the stack was ended with `turnpoint down`")

    monkeypatch.setattr(Restarter, "restart", restart)
    with pytest.raises(Stopped):
        await given.run(lambda _: observation(gone={"worker_1"}))
