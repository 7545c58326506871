"""A process without a process: tasks and threads that end together, as by SIGKILL.

Guarantees: after `kill` no task that was spawned in it, nor one that such a task has started, runs
any more, and no thread of the loop's executor: the next execution starts from the disk alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

_CURRENT: ContextVar[FakeProcess | None] = ContextVar("fake_process", default=None)
_CANCEL_AGAIN_S = 0.05
"""A task whose clean-up waits for another task that has ended is cancelled again after this."""


class FakeProcess:
    """One at a time: all threads of the loop's executor belong to it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._killed = False
        self._threads = ThreadPoolExecutor(thread_name_prefix="twin")
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_made)
        loop.set_default_executor(self._threads)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in it; the caller stays outside."""
        context = contextvars.copy_context()
        context.run(_CURRENT.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def owns(self, task: asyncio.Task[Any]) -> None:
        """Take in a new task; after `kill` it is cancelled before it begins."""
        if self._killed:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def kill(self) -> None:
        """End it; called from outside of it."""
        self._killed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=_CANCEL_AGAIN_S)
        self._threads.shutdown(wait=True, cancel_futures=True)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def _made(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    process = _CURRENT.get() if context is None else context.get(_CURRENT)
    if process is not None:
        process.owns(task)
    return task
