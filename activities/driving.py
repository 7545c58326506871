"""Driving a phase: heartbeats, leases and what is left of a deadline (design section 4).

Guarantees: a lease is extended only after Temporal has answered a heartbeat of this very try,
so a terminated workflow, a superseded try or a lost Temporal extends nothing; the time left is
counted from Temporal's own stamp of the try's start by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, AsyncActivityHandle, Client
from temporalio.service import RPCError, RPCStatusCode

from gym.protocol import DeadlineExceeded, StaleCheckpoint

Renew = Callable[[float], Awaitable[bool]]
"""Extends every lease of a checkpoint to so many seconds; False: the controller's has ended.
True does not prove that they were extended, only that it has not said so."""
BEATS_IN_A_TIMEOUT = 3
"""Heartbeats sent within one heartbeat timeout, so that one lost answer ends nothing."""
ANSWER_LIMIT = timedelta(seconds=1)
"""For Temporal's answer to one heartbeat: an answer that takes longer proves too little."""
PROVE_LIMIT_S, PROVE_PAUSE_S = 30.0, 0.2
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


class Budget:
    """What is left of a phase, in seconds."""

    def __init__(self, deadline: datetime | None) -> None:
        """Count from Temporal's stamp of this try's start; None: the phase has no deadline."""
        self._left_at_start = (
            math.inf
            if deadline is None
            else (deadline - activity.info().started_time).total_seconds()
        )
        self._started = time.monotonic()

    def elapsed_ms(self) -> float:
        """Milliseconds since this try began."""
        return (time.monotonic() - self._started) * 1000

    def left_s(self) -> float:
        """Seconds left.

        Raises:
            DeadlineExceeded: None are; the setting to raise is named.
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
    deadline: datetime | None,
    *,
    lease_s: float | None = None,
    renew: Renew | None = None,
) -> AsyncIterator[Budget]:
    """Keep a try alive while its body runs.

    The body of a repeat begins once the leases are extended: the try before it may have died and
    used up most of them, and a short body would be over before that.

    Args:
        client: To prove to each lease that Temporal still knows this try.
        deadline: End of the phase, on the workflow's clock; None for the phases of a restore.
        lease_s: Seconds that each lease is extended to.
        renew: Extends them; without it only heartbeats are sent.

    Yields:
        The budget of the phase.

    Raises:
        StaleCheckpoint: The controller's lease ended while the body ran.
    """
    body = asyncio.current_task()
    assert body is not None  # an activity is always a task
    budget, extended = Budget(deadline), asyncio.Event()
    beating = asyncio.create_task(_beat(client, lease_s, renew, extended))

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            body.cancel()

    beating.add_done_callback(ended)
    try:
        if renew is not None and activity.info().attempt > 1:
            await extended.wait()
        yield budget
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

    `extended` is set when the first renewal is over, or Temporal has not proven anything.

    Leases are extended beside the heartbeats: a server that answers slowly must not cost the try.
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
                    renewing = asyncio.create_task(_renewed(renew, left_s))
                    renewing.add_done_callback(lambda _: extended.set())
            if renewing is None:
                extended.set()
            await asyncio.sleep(pause_s)
    finally:
        if renewing is not None:
            renewing.cancel()


async def _renewed(renew: Renew, lease_s: float) -> bool:
    return await renew(lease_s)


async def prove(client: Client) -> None:
    """Ask Temporal whether it still waits for this very try; before a step that destroys.

    A Temporal that does not answer is asked again: it may be restarted at this moment, and a
    claim that gave up over that would have ended a job for nothing.

    Raises:
        StaleCheckpoint: It does not, or stays silent: a try that stood still must not end what a
            later one has built.
    """
    handle = client.get_async_activity_handle(task_token=activity.info().task_token)
    give_up = time.monotonic() + PROVE_LIMIT_S
    while not await _proven(handle):
        if time.monotonic() > give_up:
            raise StaleCheckpoint("Temporal does not confirm this try")
        await asyncio.sleep(PROVE_PAUSE_S)


async def _proven(handle: AsyncActivityHandle) -> bool:
    """Whether Temporal answers that this try is still the one that it waits for.

    Raises:
        StaleCheckpoint: It answers that it is not: completed, terminated or tried again.
    """
    try:
        await handle.heartbeat(rpc_timeout=ANSWER_LIMIT)
    except AsyncActivityCancelledError:
        return False  # the SDK cancels the activity's task; what it compensates renews nothing
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise StaleCheckpoint("Temporal does not wait for this try any more") from None
        return False  # Temporal is out of reach: proves nothing, the leases decide
    return True
