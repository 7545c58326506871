"""The data-plane barrier: many mutations at once, or one exclusive cut (design section 7).

Guarantees: a cut begins only when no mutation runs, and none begins before it ends; a waiting
cut holds new mutations back, so it is not starved; a cut whose wait is cancelled lets them go
on. `version` rises by one with each mutation that ends, also by an error, since what took effect
is then unknown.

All use is on one event loop. Inside a section only TransferQueue is awaited, within the limit of
`JobState.data_plane`. Sections do not nest: in one task the inner one could wait for ever, so it is
refused; a task that is started inside a section must not be awaited there if it enters one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Barrier:
    """Readers-writer lock in asyncio terms: mutations are the readers, the cut the writer."""

    def __init__(self) -> None:
        self.version = 0
        """Mutations ended so far: equal numbers mean that nothing changed between."""
        self._mutating: set[asyncio.Task[object]] = set()
        self._cutter: asyncio.Task[object] | None = None
        self._cuts_waiting = 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def mutation(self) -> AsyncIterator[None]:
        """A section that changes the data plane, the ledger, the loader or the index.

        Raises:
            RuntimeError: The task is inside a section already.
        """
        task = self._task_outside()
        await self._until(lambda: self._cutter is None and self._cuts_waiting == 0)
        self._mutating.add(task)
        try:
            yield
        finally:
            self._mutating.remove(task)
            self.version += 1
            self._wake()

    @asynccontextmanager
    async def cut(self) -> AsyncIterator[None]:
        """The exclusive section of a save.

        Raises:
            RuntimeError: The task is inside a section already.
        """
        task = self._task_outside()
        self._cuts_waiting += 1
        try:
            await self._until(lambda: self._cutter is None and not self._mutating)
            self._cutter = task
        finally:
            self._cuts_waiting -= 1
            self._wake()
        try:
            yield
        finally:
            self._cutter = None
            self._wake()

    def _task_outside(self) -> asyncio.Task[object]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the barrier is used by asyncio tasks only")
        if task is self._cutter or task in self._mutating:
            raise RuntimeError("a section inside a section of the same task might never begin")
        return task

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            await self._changed.wait()

    def _wake(self) -> None:
        """Let all waiters look again."""
        self._changed.set()
        self._changed = asyncio.Event()
