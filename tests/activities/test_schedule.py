"""The Schedule of a job, on a real Temporal server."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.client import Client, ScheduleDescription
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import schedule_id
from activities.schedule import go_on, pause_for_restore, set_schedule

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


async def _found(client: Client, job: str) -> ScheduleDescription:
    return await client.get_schedule_handle(schedule_id(job)).describe()


async def _interval(client: Client, job: str) -> timedelta:
    return (await _found(client, job)).schedule.spec.intervals[0].every


async def test_another_interval_is_set_and_a_paused_one_stays_paused(temporal: Client) -> None:
    job = uuid4().hex
    await set_schedule(temporal, job, 3600)
    assert await _interval(temporal, job) == timedelta(hours=1)
    await temporal.get_schedule_handle(schedule_id(job)).pause(note="by an operator")
    await set_schedule(temporal, job, 7200)
    assert await _interval(temporal, job) == timedelta(hours=2)
    assert (await _found(temporal, job)).schedule.state.paused
    await set_schedule(temporal, job, None)


async def test_without_an_interval_saving_is_off(temporal: Client) -> None:
    """Break: leave a Schedule alone that has no interval any more."""
    job = uuid4().hex
    await set_schedule(temporal, job, None)
    await set_schedule(temporal, job, 3600)
    await set_schedule(temporal, job, None)
    with pytest.raises(RPCError) as gone:
        await _found(temporal, job)
    assert gone.value.status == RPCStatusCode.NOT_FOUND


async def test_a_restore_lets_go_on_what_was_running_and_nothing_else(temporal: Client) -> None:
    """Break: take a Schedule that an operator has paused for one that was running."""
    job = uuid4().hex
    assert not await pause_for_restore(temporal, job, 1)
    await set_schedule(temporal, job, 3600)
    assert await pause_for_restore(temporal, job, 2)
    # The restore that paused it never came to its end: to the next it counts as running.
    assert await pause_for_restore(temporal, job, 3)
    await go_on(temporal, job, 3)
    assert not (await _found(temporal, job)).schedule.state.paused
    await temporal.get_schedule_handle(schedule_id(job)).pause(note="by an operator")
    assert not await pause_for_restore(temporal, job, 4)
    assert (await _found(temporal, job)).schedule.state.note == "by an operator"
    await set_schedule(temporal, job, None)
