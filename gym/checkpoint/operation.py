"""What holds a participant: one checkpoint or restore id, and what was done under it.

Guarantees: the same operation under the same id has its effect once: while it runs, a repeat
waits for it; when it has succeeded, a repeat gets the recorded answer; with another body it is
refused (design section 6). Everything ends with the hold, so memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gym.protocol import StaleCheckpoint
from gym.single_flight import SingleFlight

T = TypeVar("T")

STALE_IDS_KEPT = 1024
"""Design section 6, `resume`: the newest 1,024 ids are remembered."""


class Hold:
    """One id's hold of a participant, from its first operation to resume, reset or lease end."""

    def __init__(self, operation_id: str) -> None:
        self.id = operation_id
        self.ended = asyncio.Event()
        """Set when the id can do nothing more here; who waits under it gives up."""
        self._flights: SingleFlight[str] = SingleFlight("an operation of this id")

    def end(self) -> None:
        """Nothing of this id takes effect any more."""
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
        """Run `work` once, as `SingleFlight.run`; it sees to `raise_if_ended` itself.

        Raises:
            RequestConflict: The operation runs or ran with another body.
        """
        details = {"id": self.id, "operation": operation}
        return await self._flights.run(operation, body, work, record=record, details=details)

    async def settled(self, operation: str) -> None:
        """Return when `operation` does not run (any more), however it ended."""
        await self._flights.settled(operation)


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
