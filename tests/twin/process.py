"""A process of the in-process twin: tasks and threads that end together, as by SIGKILL.

Guarantees: after `kill` no task that was spawned in it, nor one that such a task has started, runs
any more, and no thread of the loop's executor: the next life starts from the disk alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

_MINE: ContextVar[Process | None] = ContextVar("twin_process", default=None)
_AGAIN_S = 0.05
"""A task that cleans up, and waits for somebody who is dead as well, is cancelled again."""


class Process:
    """One at a time: the threads of the loop's executor are taken for its own."""

    def __init__(self) -> None:
        """Make its loop one that knows whose each task is."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dead = False
        self._threads = ThreadPoolExecutor(thread_name_prefix="twin")
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_made)
        loop.set_default_executor(self._threads)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in it; a caller from outside stays outside."""
        context = contextvars.copy_context()
        context.run(_MINE.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def owns(self, task: asyncio.Task[Any]) -> None:
        """Take a new task; one that a timer of the dead has started ends before it begins."""
        if self._dead:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def kill(self) -> None:
        """End it; for a caller outside."""
        self._dead = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=_AGAIN_S)
        self._threads.shutdown(wait=True, cancel_futures=True)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def _made(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    process = _MINE.get() if context is None else context.get(_MINE)
    if process is not None:
        process.owns(task)
    return task
