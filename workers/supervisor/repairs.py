"""Starts processes and actors without state again, under the live job, until they are ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from workers.errors import Stopped, WorkerRoomError
from workers.supervisor import recovery
from workers.supervisor.event_log import EventLog

END_TIMEOUT_S = 10.0
"""Longest wait of a job's end for a process that is being started."""


class Repairs:
    """The repairs that are under way, each of one process, or of the actors.

    Args:
        event_log: Gets what is done.
    """

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> set[str]:
        """Names of what is being repaired."""
        return set(self._tasks)

    def begin(
        self, name: str, incarnation: int, start: Callable[[], Awaitable[None]], *, what: str = ""
    ) -> None:
        """Begin to start something again, unless that is under way.

        Args:
            name: The process, or another name for the repair.
            incarnation: The live one.
            start: One try.
            what: What is gone, for a person; by default `name`.
        """
        if name not in self._tasks:
            repair = self._repair(what or name, incarnation, start)
            self._tasks[name] = asyncio.create_task(repair)

    def collect(self) -> None:
        """Take the outcomes of those that are over; `Stopped` if the stack was ended."""
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                if not task.cancelled():
                    task.result()

    async def finish(self) -> None:
        """Wait for what is under way: the job has finished meanwhile."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=END_TIMEOUT_S)

    async def cancel(self) -> None:
        """End all that is under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _repair(
        self, what: str, incarnation: int, start: Callable[[], Awaitable[None]]
    ) -> None:
        self._event_log.write("noticed", f"{what} is gone: starting it again; the job goes on")
        began = time.monotonic()
        retrying = AsyncRetrying(
            retry=retry_if_exception(
                lambda e: isinstance(e, WorkerRoomError) and not isinstance(e, Stopped)
            ),
            wait=wait_exponential(recovery.FIRST_BACKOFF_S, max=recovery.MOST_BACKOFF_S),
            before_sleep=self._on_failed_try,
        )
        async for attempt in retrying:
            with attempt:
                await start()
        took_s = time.monotonic() - began
        self._event_log.write("restarted", f"{what} runs again after {took_s:.1f} s")
        self._event_log.add(
            "restarted",
            reasons=[f"{what} is gone"],
            processes=[what],
            incarnation=incarnation,
            took_s=took_s,
        )

    def _on_failed_try(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, WorkerRoomError)
        self._event_log.write_failed_try(error, f"; again in {state.upcoming_sleep:g} s")
