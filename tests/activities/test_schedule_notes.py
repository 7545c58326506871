"""A restore lets the job's Schedule go on only if this restore has paused it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client, ScheduleState

from activities.schedule import go_on, pause_for_restore


class Given:
    """A Temporal with one Schedule, which runs."""

    def __init__(self) -> None:
        self.state = ScheduleState()

    @property
    def client(self) -> Client:
        return cast(Client, self)

    def get_schedule_handle(self, _: str) -> Given:
        return self

    async def describe(self) -> Any:
        return SimpleNamespace(schedule=SimpleNamespace(state=self.state))

    async def pause(self, *, note: str) -> None:
        self.state = ScheduleState(note=note, paused=True)

    async def unpause(self, *, note: str) -> None:
        self.state = ScheduleState(note=note, paused=False)


async def test_a_restore_lets_go_on_what_it_has_paused() -> None:
    given = Given()
    assert await pause_for_restore(given.client, "demo", 2)
    await go_on(given.client, "demo", 2)
    assert not given.state.paused
    await go_on(given.client, "demo", 2)  # a repeat
    assert given.state.note == "going on after restore 2"


@pytest.mark.parametrize("note", ["the disk is full", "restore 3"])
async def test_a_schedule_paused_meanwhile_for_another_reason_stays_paused(
    note: str,
) -> None:
    """An operator who stops saving during a restore, or a later restore.

    Break: activities/schedule.py: let go on whatever is found at the restore's end.
    """
    given = Given()
    assert await pause_for_restore(given.client, "demo", 2)
    await given.pause(note=note)
    await go_on(given.client, "demo", 2)
    assert given.state == ScheduleState(note=note, paused=True)
