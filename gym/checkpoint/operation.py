"""What holds a participant: one checkpoint or restore id, and what was done under it.

Guarantees: the same operation under the same id has its effect once: while it runs, a repeat
waits for it; when it has succeeded, a repeat gets the recorded answer; with another body it is
refused (design section 6). Everything ends with the hold, so memory stays bounded.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from gym.protocol import RequestConflict, StaleCheckpoint

T = TypeVar("T")

STALE_IDS_KEPT = 1024
"""Design section 6, `resume`: the newest 1,024 ids are remembered."""


class Hold:
    """One id's hold of a participant, from its first operation to resume, reset or lease end."""

    def __init__(self, operation_id: str) -> None:
        """Nothing done yet."""
        self.id = operation_id
        self.ended = asyncio.Event()
        """Set when the id can do nothing more here; who waits under it gives up."""
        self.stop = threading.Event()
        """The same, for the hold's threads."""
        self._recorded: dict[str, tuple[object, object]] = {}
        self._running: dict[str, tuple[object, asyncio.Task[Any]]] = {}

    def end(self) -> None:
        """Nothing of this id takes effect any more."""
        self.stop.set()
        self.ended.set()

    def raise_if_ended(self) -> None:
        """Raise `StaleCheckpoint` if the hold has ended."""
        if self.ended.is_set():
            raise stale(self.id)

    async def once(
        self,
        operation: str,
        body: object,
        work: Callable[[], Awaitable[T]],
        *,
        record: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Run `work` in a task of its own, or join what runs, or answer what was recorded.

        A caller that leaves ends nothing.

        Args:
            operation: Name of the operation.
            body: What must be the same in a repeat.
            work: The operation; it sees to `raise_if_ended` itself.
            record: Whether this answer stands for repeats.

        Raises:
            RequestConflict: The operation runs or ran with another body.
        """
        if operation in self._recorded:
            known, answer = self._recorded[operation]
            self._raise_if_other(operation, known, body)
            return cast(T, answer)
        if operation in self._running:
            known, task = self._running[operation]
            self._raise_if_other(operation, known, body)
        else:
            task = asyncio.ensure_future(self._run(operation, body, work, record))
            task.add_done_callback(_look_at)
            self._running[operation] = (body, task)
        return cast(T, await asyncio.shield(task))

    async def settled(self, operation: str) -> None:
        """Return when `operation` does not run (any more), however it ended."""
        if operation in self._running:
            await asyncio.wait([self._running[operation][1]])

    async def _run(
        self,
        operation: str,
        body: object,
        work: Callable[[], Awaitable[T]],
        record: Callable[[T], bool],
    ) -> T:
        try:
            answer = await work()
            if record(answer):
                self._recorded[operation] = (body, answer)
            return answer
        finally:
            del self._running[operation]

    def _raise_if_other(self, operation: str, known: object, body: object) -> None:
        if known != body:
            raise RequestConflict(
                f"{operation} of this id came with another body", details={"id": self.id}
            )


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take the error of a task whose callers have all left: the operation logged it."""
    if not task.cancelled():
        task.exception()


class StaleIds:
    """The newest ids that can no longer do anything here."""

    def __init__(self, most: int = STALE_IDS_KEPT) -> None:
        """Remember `most` ids at most."""
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, operation_id: str) -> None:
        """Remember an id as the newest."""
        self._ids[operation_id] = None
        self._ids.move_to_end(operation_id)
        while len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def __contains__(self, operation_id: object) -> bool:
        """Whether the id is remembered."""
        return operation_id in self._ids

    def refuse(self, operation_id: str) -> None:
        """Raise `StaleCheckpoint` if the id is remembered."""
        if operation_id in self._ids:
            raise stale(operation_id)


def stale(operation_id: str) -> StaleCheckpoint:
    """The error for an id that was resumed or reset, or whose lease has ended."""
    return StaleCheckpoint("this id has ended here", details={"id": operation_id})
