"""Repeated calls: which errors are repeated, and how long is waited in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from gym.protocol import CheckpointParked, NotReady, ServerUnreachable, StaleCheckpoint
from gym.retry import TryAgain, retry, retry_until


class Failing:
    """Raises the given errors, one a try, then answers the number of tries."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tries = 0

    async def __call__(self) -> int:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.tries


class Sleeps:
    """Notes the waits and returns at once."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_waits_double_up_to_a_second_and_are_shortened_by_a_half_at_most() -> None:
    """Break: gym/retry.py: wait the same time after each try."""
    sleeps, call = Sleeps(), Failing(*[TryAgain("HTTP 503") for _ in range(8)])
    assert await retry(call, on=TryAgain, sleep=sleeps) == 9
    longest = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert all(most / 2 <= s <= most for s, most in zip(sleeps.seconds, longest, strict=True))
    assert sleeps.seconds != longest


async def test_a_server_that_names_a_time_is_asked_again_then() -> None:
    sleeps, call = Sleeps(), Failing(TryAgain("parked", after_s=0.0), TryAgain("", after_s=3.0))
    await retry(call, on=TryAgain, sleep=sleeps)
    assert sleeps.seconds == [0.0, 3.0]


async def test_any_other_error_rises_at_once() -> None:
    call = Failing(CheckpointParked("closed"), StaleCheckpoint("over"))
    with pytest.raises(StaleCheckpoint):
        await retry(call, on=(CheckpointParked, ServerUnreachable), sleep=Sleeps())
    assert call.tries == 2


async def test_each_wait_is_told_with_the_number_of_tries_and_the_error() -> None:
    told: list[tuple[int, str]] = []
    await retry(
        Failing(TryAgain("HTTP 500"), TryAgain("HTTP 429")),
        on=TryAgain,
        sleep=Sleeps(),
        on_retry=lambda tries, error: told.append((tries, str(error))),
    )
    assert told == [(1, "HTTP 500"), (2, "HTTP 429")]


async def test_a_lambda_is_awaited() -> None:
    async def answer() -> int:
        return 7

    assert await retry(lambda: answer(), on=TryAgain) == 7
    assert await retry_until(time.monotonic() + 1, lambda: answer()) == 7


async def test_until_the_deadline_what_passes_is_repeated() -> None:
    call = Failing(ServerUnreachable("no answer"), NotReady("not yet"))
    assert await retry_until(time.monotonic() + 5, call) == 3


async def test_what_does_not_pass_rises_before_the_deadline() -> None:
    call = Failing(StaleCheckpoint("over"), StaleCheckpoint("over"))
    with pytest.raises(StaleCheckpoint):
        await retry_until(time.monotonic() + 5, call)
    assert call.tries == 1


async def test_the_last_error_rises_when_the_next_try_would_come_after_the_deadline() -> None:
    """Break: gym/retry.py: stop only after the deadline."""
    started = time.monotonic()
    call = Failing(*[ServerUnreachable(f"try {number}") for number in range(1, 100)])
    with pytest.raises(ServerUnreachable) as last:
        await retry_until(started + 0.5, call)
    assert time.monotonic() - started <= 0.5
    assert last.value.message == f"try {call.tries}" and call.tries >= 3


async def test_a_deadline_that_is_over_leaves_one_try() -> None:
    call = Failing(ServerUnreachable("no answer"), ServerUnreachable("no answer"))
    with pytest.raises(ServerUnreachable):
        await retry_until(time.monotonic() - 1, call)
    assert call.tries == 1


async def test_a_caller_that_is_cancelled_stops_at_once() -> None:
    call = Failing(*[TryAgain("down") for _ in range(100)])
    waiting = asyncio.create_task(retry(call, on=TryAgain))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
