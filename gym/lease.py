"""A lease that ends by itself (design section 4, leases).

Guarantees: `check` finds an ended lease independent of the timer, so a process that was stopped
and continued ends it before it serves anything, as long as every request checks first. The timer
ends it when no request comes. Only `extend` extends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def lease_clock() -> float:
    """Seconds that pass while the process is stopped, and while the machine sleeps.

    `CLOCK_MONOTONIC` stands still while a machine is suspended, and the others go on.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Lease:
    """At most one lease at a time; used on one event loop.

    Args:
        on_end: Called once when the lease runs out; not when it is released.
        clock: Seconds, never going back.
    """

    def __init__(
        self, on_end: Callable[[], None], *, clock: Callable[[], float] = lease_clock
    ) -> None:
        self._on_end = on_end
        self._clock = clock
        self._ends_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds left (0 at least), or None without a lease."""
        if self._ends_at is None:
            return None
        return max(0.0, self._ends_at - self._clock())

    def extend(self, lease_s: float) -> None:
        """Let the lease run for `lease_s` from now, whatever was left."""
        self._ends_at = self._clock() + lease_s
        self._arm(lease_s)

    def release(self) -> None:
        """End the lease without calling `on_end`; repeatable."""
        self._ends_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """End the lease now if its time is over; every request calls this first."""
        if self._ends_at is not None and self._clock() >= self._ends_at:
            self.release()
            self._on_end()

    def _arm(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._due)

    def _due(self) -> None:
        self.check()
        # The loop's clock and the lease's may differ a little: wait for the rest.
        if (left := self.left_s) is not None:
            self._arm(max(left, 0.001))
