"""The one Schedule of a job: it starts saves, and the controller may refuse them (section 9).

Guarantees: overlap SKIP; pausing it in the UI pauses saving; a restore pauses it with a note of
its own and continues it afterwards only if it was running before (or was paused by an earlier
restore that never ended). Setting its interval keeps an operator's pause and ends a restore's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import TASK_QUEUE, SaveInput, schedule_id

RESTORE_NOTE = "restore {incarnation}"
_BY_A_RESTORE = re.compile(r"restore [0-9]+")


async def set_schedule(client: Client, job_id: str, interval_s: float | None) -> None:
    """Create the job's Schedule, or set its interval; one paused by an operator stays paused.

    A Schedule that a restore has paused is continued (design section 9): that restore has failed
    or was cancelled, else the job would not be started here.

    Args:
        client: Of the job's Temporal.
        job_id: The job.
        interval_s: Seconds between saves; None: saving is off, and the Schedule is removed.
    """
    if interval_s is None:
        await _remove(client, job_id)
        return
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(
            "SaveSnapshot",
            SaveInput(job_id=job_id, trigger="scheduled"),
            id=f"{job_id}/save",
            task_queue=TASK_QUEUE,
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=interval_s))]),
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.SKIP,
            catchup_window=timedelta(seconds=max(interval_s, 10.0)),
            pause_on_failure=False,
        ),
    )
    try:
        await client.create_schedule(schedule_id(job_id), schedule)
    except ScheduleAlreadyRunningError:

        def with_interval(found: ScheduleUpdateInput) -> ScheduleUpdate:
            state = found.description.schedule.state
            if _paused_by_a_restore(state):
                state = replace(state, paused=False, note="going on: the restore has not")
            schedule.state = state
            return ScheduleUpdate(schedule=schedule)

        await client.get_schedule_handle(schedule_id(job_id)).update(with_interval)


async def _remove(client: Client, job_id: str) -> None:
    with _or_removed():
        await client.get_schedule_handle(schedule_id(job_id)).delete()


async def pause_for_restore(client: Client, job_id: str, incarnation: int) -> bool:
    """Pause the job's Schedule with the note `restore <k>`.

    Returns:
        True if it is to be continued after the restore; False if there is none, or an operator
        has paused it.
    """
    handle = client.get_schedule_handle(schedule_id(job_id))
    with _or_removed():
        state = (await handle.describe()).schedule.state
        if state.paused and not _paused_by_a_restore(state):
            return False
        await handle.pause(note=RESTORE_NOTE.format(incarnation=incarnation))
        return True
    return False


async def go_on(client: Client, job_id: str, incarnation: int) -> None:
    """Continue the Schedule that this restore has paused.

    A Schedule that was removed meanwhile, or paused by an operator or a later restore, is left as
    it is.
    """
    handle = client.get_schedule_handle(schedule_id(job_id))
    with _or_removed():
        state = (await handle.describe()).schedule.state
        if state.paused and state.note == RESTORE_NOTE.format(incarnation=incarnation):
            await handle.unpause(note=f"going on after restore {incarnation}")


def _paused_by_a_restore(state: ScheduleState) -> bool:
    return state.paused and _BY_A_RESTORE.fullmatch(state.note or "") is not None


@contextmanager
def _or_removed() -> Iterator[None]:
    """Ignore that there is no Schedule (any more): saving is off."""
    try:
        yield
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
