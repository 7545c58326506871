"""The data-plane barrier: many mutations at once, or one exclusive cut (design section 7).

Guarantees: a cut begins only when no mutation runs and none begins before it ends; a waiting
cut holds new mutations back, so it is not starved; a cut whose wait is cancelled lets them go
on. Sections are re-entrant per task: a mutation inside a mutation never waits for a cut that
waits for the outer one. `version` rises by one with each outer mutation that ends, also by an
error, since what took effect is then unknown.

Not guaranteed: a task started inside a section and awaited there is another task, and waits
like any other. All use is on one event loop. Inside a section only TransferQueue is awaited;
`DataPlaneLimit` in `rl.controller.job_state` bounds that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Barrier:
    """Readers-writer lock in asyncio terms: mutations are the readers, the cut the writer."""

    def __init__(self) -> None:
        """Nothing runs, nothing waits."""
        self.version = 0
        """Outer mutations ended so far: equal numbers mean that nothing changed between."""
        self._depth: dict[asyncio.Task[object], int] = {}
        self._cutter: asyncio.Task[object] | None = None
        self._cuts_waiting = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def cutting(self) -> bool:
        """Whether a cut holds the data plane now."""
        return self._cutter is not None

    @asynccontextmanager
    async def mutation(self) -> AsyncIterator[None]:
        """A section that changes the data plane, the ledger, the loader or the index.

        Raises:
            RuntimeError: The task holds the cut; waiting for it would never end.
        """
        task = _task()
        if self._cutter is task:
            raise RuntimeError("a cut changes nothing: mutation inside a cut")
        if task not in self._depth:
            await self._until(lambda: self._cutter is None and self._cuts_waiting == 0)
        self._depth[task] = self._depth.get(task, 0) + 1
        try:
            yield
        finally:
            self._depth[task] -= 1
            if self._depth[task] == 0:
                del self._depth[task]
                self.version += 1
                self._wake()

    @asynccontextmanager
    async def cut(self) -> AsyncIterator[None]:
        """The exclusive section of a save.

        Raises:
            RuntimeError: The task is inside a mutation or a cut already.
        """
        task = _task()
        if self._cutter is task or task in self._depth:
            raise RuntimeError("a cut inside a section of the same task would never begin")
        self._cuts_waiting += 1
        try:
            await self._until(lambda: self._cutter is None and not self._depth)
            self._cutter = task
        finally:
            self._cuts_waiting -= 1
            self._wake()
        try:
            yield
        finally:
            self._cutter = None
            self._wake()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("the barrier is used by asyncio tasks alone")
    return task
