"""Following a job to its end, across restores, without taking part in it.

Guarantees: nothing is changed; the death of Ray does not end the following. A job that is lost is
waited for during `restore_wait_s`: a supervisor or a person may bring it back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rl.messages import ControllerStatus, JobPhase
from workers.config.settings import Settings
from workers.errors import NotRunning
from workers.job.ray_client import JobWatch
from workers.job.status import being_raised

LOOK_EVERY_S = 0.5
FIRST_LOOK_TIMEOUT_S = 30.0
"""The process that looks into Ray imports it first: seconds."""


async def follow_to_the_end(
    settings: Settings,
    on_status: Callable[[ControllerStatus], None],
    on_message: Callable[[str], None],
) -> ControllerStatus:
    """Follow the job until it has finished.

    Args:
        settings: Of the job. One that is lost, or is being restored at the first look, is waited
            for during `restore_wait_s`.
        on_status: Called with each status.
        on_message: Called with one line when the job is waited for, and when it lives again.

    Returns:
        The last status: finished, or failed and not brought back.

    Raises:
        NotRunning: There is no live job, or it was lost and not brought back.
    """
    last: ControllerStatus | None = None
    lost_since: float | None = None
    began = time.monotonic()
    async with JobWatch(settings) as watch:
        while True:
            seen = watch.seen
            now = seen.controller if seen is not None else None
            if now is not None and now.state is not JobPhase.FAILED:
                if lost_since is not None:
                    on_message(f"it lives again, as incarnation {now.incarnation}")
                last, lost_since = now, None
                on_status(now)
                if now.state is JobPhase.FINISHED:
                    return now
            elif last is None and lost_since is None:
                if seen is not None or time.monotonic() - began > FIRST_LOOK_TIMEOUT_S:
                    raised = being_raised(settings.snapshot_place().job_folder)
                    if raised is None:
                        raise NotRunning("no job is running; `turnpoint run` starts or restores it")
                    lost_since = time.monotonic()
                    on_message(f"{raised}; waiting {settings.restore_wait_s:g} s for it")
            elif seen is not None and seen.silent:
                pass  # the controller is there and does not answer: keep waiting
            elif lost_since is None:
                lost_since = time.monotonic()
                last = now or last
                on_message(f"lost; waiting {settings.restore_wait_s:g} s for a restore")
            elif time.monotonic() - lost_since > settings.restore_wait_s:
                if now is not None:
                    return now
                raise NotRunning(
                    "the job is gone and was not brought back; `turnpoint run` restores it"
                )
            await asyncio.sleep(LOOK_EVERY_S)
