"""The one Schedule of a job: it proposes saves, the controller disposes (design section 9).

Guarantees: overlap SKIP; pausing it in the UI pauses saving; a restore pauses it with a note of
its own and lets it go on afterwards only if it was running before (or was paused by an earlier
restore that never came to its end).
"""

from __future__ import annotations

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
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import TASK_QUEUE, SaveInput, schedule_id

RESTORE_NOTE = "restore"


async def set_schedule(client: Client, job_id: str, interval_s: float | None) -> None:
    """Create the job's Schedule, or set its interval; a paused one stays paused.

    Args:
        client: Of the job's Temporal.
        job_id: The job.
        interval_s: Between saves, in seconds; None: saving is off, and the Schedule removed.
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
            schedule.state = found.description.schedule.state
            return ScheduleUpdate(schedule=schedule)

        await client.get_schedule_handle(schedule_id(job_id)).update(with_interval)


async def _remove(client: Client, job_id: str) -> None:
    try:
        await client.get_schedule_handle(schedule_id(job_id)).delete()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


async def pause_for_restore(client: Client, job_id: str, incarnation: int) -> bool:
    """Pause the job's Schedule with the note `restore <k>`.

    Returns:
        Whether it should go on after the restore; False if there is none, or somebody paused it.
    """
    handle = client.get_schedule_handle(schedule_id(job_id))
    try:
        state = (await handle.describe()).schedule.state
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    if state.paused and not (state.note or "").startswith(RESTORE_NOTE):
        return False
    await handle.pause(note=f"{RESTORE_NOTE} {incarnation}")
    return True


async def go_on(client: Client, job_id: str, incarnation: int) -> None:
    """Let the Schedule that a restore paused go on."""
    await client.get_schedule_handle(schedule_id(job_id)).unpause(
        note=f"going on after restore {incarnation}"
    )
