"""The Schedule of a job, on a real Temporal server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
import pytest_asyncio
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleDescription,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import TASK_QUEUE, SaveInput, schedule_id
from activities.schedule import go_on, pause_for_restore, set_schedule

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


async def _found(client: Client, job: str) -> ScheduleDescription:
    return await client.get_schedule_handle(schedule_id(job)).describe()


async def _interval(client: Client, job: str) -> timedelta:
    return (await _found(client, job)).schedule.spec.intervals[0].every


class Acting:
    """A job whose Schedule starts saves that no worker takes up."""

    def __init__(self, client: Client) -> None:
        self.client, self.job = client, uuid4().hex
        self._saves: list[WorkflowHandle[object, object]] = []

    async def first_save(self) -> WorkflowHandle[object, object]:
        """The save that the Schedule has started, as soon as there is one."""
        async with asyncio.timeout(15):
            # Temporal has no event for it.
            while not (found := (await _found(self.client, self.job)).info.recent_actions):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        action = found[0].action
        assert isinstance(action, ScheduleActionExecutionStartWorkflow)
        save: WorkflowHandle[object, object] = self.client.get_workflow_handle(
            action.workflow_id, run_id=action.first_execution_run_id
        )
        self._saves.append(save)
        return save

    async def end(self) -> None:
        await set_schedule(self.client, self.job, None)
        for save in self._saves:
            await save.terminate("test")


@pytest_asyncio.fixture(loop_scope="session")
async def acting(temporal: Client) -> AsyncIterator[Acting]:
    found = Acting(temporal)
    yield found
    await found.end()


async def test_the_schedule_starts_a_scheduled_save_of_its_job(acting: Acting) -> None:
    """Break: leave `trigger` out of its input; a refused save fails then, and is no `skipped`."""
    await set_schedule(acting.client, acting.job, 3600)
    await acting.client.get_schedule_handle(schedule_id(acting.job)).trigger()
    save = await acting.first_save()
    assert save.id.startswith(f"{acting.job}/save")
    event = (await save.fetch_history()).events[0].workflow_execution_started_event_attributes
    assert event.workflow_type.name == "SaveSnapshot"
    assert event.task_queue.name == TASK_QUEUE
    (given,) = await acting.client.data_converter.decode(event.input.payloads, [SaveInput])
    assert given == SaveInput(job_id=acting.job, trigger="scheduled")


async def test_scheduled_saves_go_on_after_a_restore_that_failed(acting: Acting) -> None:
    """The restore paused it and came to no end; the job is started anew, with `run --fresh`.

    Break: activities/schedule.py: keep the state of whatever Schedule is found.
    """
    await set_schedule(acting.client, acting.job, 3600)
    assert await pause_for_restore(acting.client, acting.job, 2)
    await set_schedule(acting.client, acting.job, 1)
    assert not (await _found(acting.client, acting.job)).schedule.state.paused
    await acting.first_save()


async def test_a_schedule_that_was_removed_meanwhile_fails_no_restore(temporal: Client) -> None:
    """Its pumps run already. Break: activities/schedule.py: let `go_on` demand a Schedule."""
    job = uuid4().hex
    await set_schedule(temporal, job, 3600)
    assert await pause_for_restore(temporal, job, 2)
    await set_schedule(temporal, job, None)
    await go_on(temporal, job, 2)


async def test_a_note_of_an_operators_own_is_no_restores(temporal: Client) -> None:
    """Break: activities/schedule.py: go by the note's first word."""
    job = uuid4().hex
    await set_schedule(temporal, job, 3600)
    await temporal.get_schedule_handle(schedule_id(job)).pause(note="restore of the disk, by hand")
    assert not await pause_for_restore(temporal, job, 2)
    await set_schedule(temporal, job, 3600)
    assert (await _found(temporal, job)).schedule.state.paused
    await set_schedule(temporal, job, None)


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
