"""Work that runs once per key: a repeat joins it while it runs, or gets its recorded answer.

Guarantees: the work runs in a task of its own, so a caller that leaves ends nothing; a repeat with
another body is refused; a failure is never recorded, so the next call runs the work again; the
exception of work whose callers have all left is retrieved. Used on one event loop.
Memory is bounded by the owner: it decides which answers are recorded, and forgets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from gym.protocol import RequestConflict, TurnpointError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(eq=False)
class _Flight:
    """Work that runs."""

    body: object
    task: asyncio.Task[Any]
    error: TurnpointError | None = None
    """Raised by every joined caller, once the owner has cancelled the work."""


class SingleFlight(Generic[K]):
    """Running work and recorded answers by key.

    Args:
        key_name: Subject of the error for a repeat with another body: "this request id".
        participant: The server or actor that the error names.
    """

    def __init__(self, key_name: str, *, participant: str | None = None) -> None:
        self._key_name = key_name
        self._participant = participant
        self._running: dict[K, _Flight] = {}
        self._recorded: dict[K, tuple[object, Any]] = {}

    def __contains__(self, key: K) -> bool:
        """True if work for this key runs or its answer is recorded."""
        return key in self._running or key in self._recorded

    @property
    def running(self) -> list[K]:
        """Keys whose work runs."""
        return list(self._running)

    @property
    def answers(self) -> list[Any]:
        """All recorded answers, oldest first."""
        return [answer for _, answer in self._recorded.values()]

    def answer(self, key: K) -> Any | None:
        """The recorded answer of a key, or None."""
        return self._recorded.get(key, (None, None))[1]

    async def run(
        self,
        key: K,
        body: object,
        work: Callable[[], Awaitable[T]],
        *,
        record: Callable[[T], bool] = lambda _: False,
        during: AbstractContextManager[object] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> T:
        """Run `work`, or join the run of this key, or answer what was recorded.

        Args:
            key: Identifies the work.
            body: Must be equal in every repeat.
            work: Called in a new task, with the context variables of this first caller.
            record: True for an answer that later repeats get; by default none is recorded.
            during: Entered at once if the work is new, left when it has ended.
            details: Details of the error for another body.

        Raises:
            RequestConflict: The key runs, or is recorded, with another body.
            TurnpointError: The error given to `cancel`.
            Exception: The error of the work.
        """
        flight = self._running.get(key)
        known = (flight.body,) if flight else self._recorded.get(key)
        if known is not None and known[0] != body:
            raise RequestConflict(
                f"{self._key_name} came with another body",
                participant=self._participant,
                details=dict(details or {}),
            )
        if flight is None:
            if key in self._recorded:
                return cast(T, self._recorded[key][1])
            flight = self._start(key, body, work, record, during or nullcontext())
        # Unlike awaiting the task, this leaves it running when the caller is cancelled.
        await asyncio.wait([flight.task])
        if flight.error is not None:
            raise flight.error
        return cast(T, flight.task.result())

    def put(self, key: K, body: object, answer: object) -> None:
        """Record an answer from elsewhere (a restore)."""
        self._recorded[key] = (body, answer)

    def forget(self, key: K) -> None:
        """Drop the recorded answer of a key; work that runs goes on."""
        self._recorded.pop(key, None)

    def cancel(self, key: K, error: TurnpointError) -> None:
        """End the work of a key and drop its answer; the key is free at once.

        Joined callers get `error` when the task has ended.
        """
        self.forget(key)
        if (flight := self._running.pop(key, None)) is not None:
            flight.error = error
            flight.task.cancel()

    async def settled(self, key: K) -> None:
        """Return when no work of this key runs, however it ended."""
        if (flight := self._running.get(key)) is not None:
            await asyncio.wait([flight.task])

    async def aclose(self) -> None:
        """End all work and wait for its end; the process ends."""
        tasks = [flight.task for flight in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(
        self,
        key: K,
        body: object,
        work: Callable[[], Awaitable[T]],
        record: Callable[[T], bool],
        during: AbstractContextManager[object],
    ) -> _Flight:
        async def called() -> T:
            return await work()

        def ended(task: asyncio.Task[T]) -> None:
            during.__exit__(None, None, None)
            if self._running.get(key) is flight:
                del self._running[key]
            if task.cancelled() or task.exception() is not None or flight.error is not None:
                return
            if record(task.result()):
                self.put(key, body, task.result())

        # Before the task: a task that is cancelled before its first step runs none of its code.
        during.__enter__()
        flight = self._running[key] = _Flight(body, asyncio.create_task(called()))
        flight.task.add_done_callback(ended)
        return flight
