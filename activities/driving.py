"""Driving a phase: heartbeats, leases and the time left until a deadline (design section 4).

Guarantees: a lease is extended only after Temporal has answered a heartbeat of this very try,
so a terminated workflow, a superseded try or a lost Temporal extends nothing; the time left is
counted from Temporal's own stamp of the try's start by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, AsyncActivityHandle, Client
from temporalio.service import RPCError, RPCStatusCode

from gym.protocol import DeadlineExceeded, StaleCheckpoint

Renew = Callable[[float], Coroutine[Any, Any, bool]]
"""Extends every lease of a checkpoint to so many seconds; False: the controller's has ended.
True says only that no participant has reported an ended lease, not that all were extended."""
BEATS_IN_A_TIMEOUT = 3
"""Heartbeats sent within one heartbeat timeout, so that one lost answer ends nothing."""
ANSWER_TIMEOUT = timedelta(seconds=1)
"""For Temporal's answer to one heartbeat; a later one is too old to extend a lease."""
PROVE_TIMEOUT_S, PROVE_PAUSE_S = 30.0, 0.2
"""A Temporal that was killed is there again within seconds."""
LEASE_SHARE = 3
"""A lease is extended every third of it (design section 4, leases)."""
DEADLINE_SETTING = {
    "close_admission": "prepare_timeout_s",
    "prepare_checkpoint": "prepare_timeout_s",
    "commit_checkpoint": "commit_timeout_s",
    "cut_rl_state": "cut_timeout_s",
    "publish_snapshot": "publish_timeout_s",
}
"""The setting that each phase's deadline comes from; admission closes in the time to prepare."""


class PhaseClock:
    """The time that a phase has taken and the time that is left.

    Args:
        deadline: End of the phase; None if it has no deadline. The time left is counted from
            Temporal's stamp of this try's start.
    """

    def __init__(self, deadline: datetime | None) -> None:
        self._left_at_start = (
            math.inf
            if deadline is None
            else (deadline - activity.info().started_time).total_seconds()
        )
        self._started = time.monotonic()

    def elapsed_ms(self) -> float:
        """Milliseconds since this try began."""
        return (time.monotonic() - self._started) * 1000

    def timeout_s(self) -> float:
        """Seconds left until the deadline.

        Raises:
            DeadlineExceeded: None are left; the message names the setting to raise.
        """
        left = self._left_at_start - (time.monotonic() - self._started)
        if left <= 0:
            phase = activity.info().activity_type
            raise DeadlineExceeded(
                f"{phase}: no time is left: save again, or with a longer "
                f"{DEADLINE_SETTING.get(phase, 'deadline')}"
            )
        return left


@asynccontextmanager
async def driving(
    client: Client,
    deadline: datetime | None = None,
    *,
    lease_s: float | None = None,
    renew: Renew | None = None,
) -> AsyncIterator[PhaseClock]:
    """Keep a try alive while its body runs.

    The body of a repeat begins once the leases are extended: the try before it may have died and
    used up most of them, and a short body would be over before that.

    Args:
        client: To prove to each lease that Temporal still knows this try.
        deadline: End of the phase, on the workflow's clock; None for the phases of a restore.
        lease_s: Seconds that each lease is extended to.
        renew: Extends them; without it only heartbeats are sent.

    Yields:
        The clock of the phase.

    Raises:
        StaleCheckpoint: The controller's lease ended while the body ran.
    """
    body = asyncio.current_task()
    assert body is not None  # an activity is always a task
    clock, extended = PhaseClock(deadline), asyncio.Event()
    beating = asyncio.create_task(_beat(client, lease_s, renew, extended))

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            body.cancel()

    beating.add_done_callback(ended)
    try:
        if renew is not None and activity.info().attempt > 1:
            await extended.wait()
        yield clock
    except asyncio.CancelledError:
        if beating.done() and not beating.cancelled() and (error := beating.exception()):
            raise error from None
        raise
    finally:
        beating.remove_done_callback(ended)  # a body that has returned is not cancelled any more
        beating.cancel()


async def _beat(
    client: Client, lease_s: float | None, renew: Renew | None, extended: asyncio.Event
) -> None:
    """Heartbeat for ever; ends only by an error that ends the try.

    Leases are extended beside the heartbeats: a server that answers slowly must not cost the try.
    `extended` is set after the first renewal, or if Temporal has confirmed nothing.
    """
    info = activity.info()
    timeout_s = info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else 10.0
    pause_s = timeout_s / BEATS_IN_A_TIMEOUT
    if lease_s is not None:
        pause_s = min(pause_s, lease_s / LEASE_SHARE)
    handle = client.get_async_activity_handle(task_token=info.task_token)
    # At once: the try before this one may have died, and used up most of the lease.
    renewed = -math.inf
    renewing: asyncio.Task[bool] | None = None
    try:
        while True:
            activity.heartbeat()  # carries a cancellation of the workflow to this task
            asked = time.monotonic()
            proven = await _proven(handle)
            if renewing is not None and renewing.done():
                if not renewing.result():
                    raise StaleCheckpoint("the controller's lease of this checkpoint has ended")
                renewing = None
            if proven and renewing is None and renew is not None and lease_s is not None:
                left_s = lease_s - (time.monotonic() - asked)  # counted from the proof
                if asked - renewed >= lease_s / LEASE_SHARE and left_s > 0:
                    renewed = asked
                    renewing = asyncio.create_task(renew(left_s))
                    renewing.add_done_callback(lambda _: extended.set())
            if renewing is None:
                extended.set()
            await asyncio.sleep(pause_s)
    finally:
        if renewing is not None:
            renewing.cancel()


async def prove(client: Client) -> None:
    """Confirm with Temporal that it still waits for this very try; before a step that destroys.

    A Temporal that does not answer is asked again: it may be restarted at this moment, and a
    claim that failed because of that would have ended a job for nothing.

    Raises:
        StaleCheckpoint: It does not wait for it, or stays silent for `PROVE_TIMEOUT_S`: a try
            that stood still must not end what a later one has built.
    """
    handle = client.get_async_activity_handle(task_token=activity.info().task_token)
    deadline = time.monotonic() + PROVE_TIMEOUT_S
    while not await _proven(handle):
        if time.monotonic() > deadline:
            raise StaleCheckpoint("Temporal does not confirm this try")
        await asyncio.sleep(PROVE_PAUSE_S)


async def _proven(handle: AsyncActivityHandle) -> bool:
    """True if Temporal answers that it waits for this try; False if it does not answer.

    Raises:
        StaleCheckpoint: The try is completed, terminated or superseded by a later one.
    """
    try:
        await handle.heartbeat(rpc_timeout=ANSWER_TIMEOUT)
    except AsyncActivityCancelledError:
        return False  # the SDK cancels the activity's task; what it compensates renews nothing
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise StaleCheckpoint("Temporal does not wait for this try any more") from None
        return False  # Temporal is out of reach: the leases decide
    return True
