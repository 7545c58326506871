"""The newest checkpoint and restore ids that have ended (design section 6, `resume`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from gym.protocol import StaleCheckpoint

V = TypeVar("V")

IDS_KEPT = 1024
"""Design section 6, `resume`: the newest 1,024 ids are remembered."""


class EndedIds(Generic[V]):
    """Bounded memory of ended ids, with something that is known of each.

    Args:
        new: Makes what is kept of an id that was not known before.
        participant: The server or actor that the error names.
    """

    def __init__(self, new: Callable[[], V], *, participant: str | None = None) -> None:
        self._new = new
        self._participant = participant
        self._ids: OrderedDict[str, V] = OrderedDict()

    def add(self, operation_id: str) -> V:
        """Remember an id as the newest; answers what is kept of it, to be filled in."""
        if operation_id not in self._ids:
            self._ids[operation_id] = self._new()
        self._ids.move_to_end(operation_id)
        while len(self._ids) > IDS_KEPT:
            self._ids.popitem(last=False)
        return self._ids[operation_id]

    def __contains__(self, operation_id: object) -> bool:
        """True if the id is remembered as ended."""
        return operation_id in self._ids

    def require_not_ended(self, operation_id: str) -> None:
        """Raise `StaleCheckpoint` if the id is remembered as ended."""
        if operation_id in self._ids:
            raise stale(operation_id, self._participant)


def stale(operation_id: str, participant: str | None = None) -> StaleCheckpoint:
    """The error for an id that was resumed or reset, or whose lease has ended."""
    return StaleCheckpoint(
        f"{operation_id} has ended here", participant=participant, details={"id": operation_id}
    )
