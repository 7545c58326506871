"""A lease ends by its timer, and at the first check after its time."""

from __future__ import annotations

import asyncio

from gym.lease import Lease, lease_clock


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_check_ends_a_lease_that_the_timer_has_not_ended_yet() -> None:
    """Break: gym/lease.py: leave the end to the timer."""
    ends: list[str] = []
    clock = Clock()
    lease = Lease(lambda: ends.append("end"), clock=clock)
    assert lease.left_s is None
    lease.extend(30)
    clock.now += 29
    lease.check()
    assert (lease.left_s, ends) == (1, [])
    clock.now += 1
    assert lease.left_s == 0
    lease.check()
    lease.check()
    assert (lease.left_s, ends) == (None, ["end"])


async def test_the_timer_ends_a_lease_that_no_request_checks() -> None:
    """Break: gym/lease.py: arm no timer."""
    ended = asyncio.Event()
    lease = Lease(ended.set)
    lease.extend(60)
    lease.extend(0.05)
    await asyncio.wait_for(ended.wait(), 2)
    assert lease.left_s is None


async def test_a_timer_that_fires_early_waits_for_the_rest() -> None:
    """Break: gym/lease.py: do not arm the timer again in `_due`."""
    ended = asyncio.Event()
    clock = Clock()
    lease = Lease(ended.set, clock=clock)
    lease.extend(0.02)
    await asyncio.sleep(0.1)
    assert not ended.is_set()  # the loop's clock has gone on, the lease's has not
    clock.now += 0.02
    await asyncio.wait_for(ended.wait(), 2)


async def test_an_extension_is_counted_from_now_and_a_release_ends_nothing() -> None:
    ends: list[str] = []
    clock = Clock()
    lease = Lease(lambda: ends.append("end"), clock=clock)
    lease.extend(30)
    clock.now += 20
    lease.extend(30)
    assert lease.left_s == 30
    lease.release()
    lease.release()
    clock.now += 60
    lease.check()
    assert (lease.left_s, ends) == (None, [])


def test_the_clock_goes_on() -> None:
    assert 0 < lease_clock() <= lease_clock()
