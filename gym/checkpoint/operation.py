"""One save or restore on a participant: its id, and what was done under it.

Guarantees: the same call under the same id has its effect once (`gym.single_flight`, design
section 6). All that is recorded goes with the operation, so memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gym.ended_ids import stale
from gym.single_flight import SingleFlight

T = TypeVar("T")


class Operation:
    """Owns a participant from its first call to the resume, reset or end of the lease.

    Args:
        operation_id: The checkpoint or restore id.
    """

    def __init__(self, operation_id: str) -> None:
        self.id = operation_id
        self.ended = asyncio.Event()
        """Set when the id can do nothing more here: calls that wait under it end."""
        self.calls: SingleFlight[str] = SingleFlight("a call of this id")
        """By name of the control route: `prepare`, `commit`, `restore`, `reset`."""

    def require_not_ended(self) -> None:
        """Raise `StaleCheckpoint` if the operation has ended."""
        if self.ended.is_set():
            raise stale(self.id)

    async def once(
        self,
        call: str,
        body: object,
        work: Callable[[], Awaitable[T]],
        *,
        record: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Run `work` once, or join it, or answer what it answered.

        Args:
            call: Name of the call.
            body: Must be the same in a repeat.
            work: Does it; it raises by itself when the operation has ended.
            record: False for an answer that a repeat computes anew.

        Raises:
            RequestConflict: The call runs or ran with another body.
        """
        details = {"id": self.id, "call": call}
        return await self.calls.run(call, body, work, record=record, details=details)
