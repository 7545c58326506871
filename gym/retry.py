"""Repeated calls: waits that double, each shortened by up to a half at random.

The randomness keeps many rollouts from calling a server that came back at one instant.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    stop_never,
    wait_exponential,
)

from gym.protocol import TurnpointError

T = TypeVar("T")
FIRST_S = 0.05
"""Longest first wait, in seconds."""
MOST_S = 1.0
"""Longest wait of a call that is repeated without a deadline, in seconds."""
MOST_UNTIL_S = 0.2
"""Longest wait of a call that is repeated until a deadline, in seconds."""


class TryAgain(Exception):
    """Raised by a call whose answer is a refusal that passes.

    Args:
        reason: For logs.
        after_s: Seconds after which the server wants the same call again, if it says so.
    """

    def __init__(self, reason: str, *, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_retry: Callable[[int, BaseException], None] = lambda tries, error: None,
) -> T:
    """Repeat `call` while it raises one of the errors in `on`.

    Args:
        call: One try.
        on: Errors that pass. A `TryAgain` with `after_s` gives the length of the next wait.
        sleep: Waits between two tries, given seconds.
        on_retry: Called before each wait, with the number of tries so far and the error.

    Raises:
        Exception: Any other error of `call`, at once.
    """
    return await _repeated(
        call,
        retry=retry_if_exception_type(on),
        wait=_Backoff(MOST_S),
        stop=stop_never,
        sleep=sleep,
        before_sleep=lambda state: on_retry(state.attempt_number, _error_of(state)),
    )


async def retry_until(deadline: float, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` while it raises a `TurnpointError` with `retryable`, until the deadline.

    Args:
        deadline: On `time.monotonic()`. It bounds the waits, not a try that runs.
        call: One try.

    Raises:
        TurnpointError: The last one: at once if it is not retryable, else when the next try
            would come after the deadline.
    """
    return await _repeated(
        call,
        retry=retry_if_exception(lambda e: isinstance(e, TurnpointError) and e.retryable),
        wait=_Backoff(MOST_UNTIL_S),
        stop=lambda state: time.monotonic() + state.upcoming_sleep >= deadline,
        sleep=asyncio.sleep,
    )


async def _repeated(call: Callable[[], Awaitable[T]], **options: Any) -> T:
    async def called() -> T:  # tenacity would not await the coroutine of a lambda
        return await call()

    return await AsyncRetrying(**options, reraise=True)(called)


class _Backoff:
    """The next wait, in seconds."""

    def __init__(self, most_s: float) -> None:
        self._longest = wait_exponential(multiplier=FIRST_S, max=most_s)

    def __call__(self, state: RetryCallState) -> float:
        after_s: float | None = getattr(_error_of(state), "after_s", None)
        return self._longest(state) * random.uniform(0.5, 1.0) if after_s is None else after_s


def _error_of(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None  # only an error is followed by a wait
    return error
