"""Data-plane calls that were admitted and are not answered yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gym.protocol import Blocker, Identity


@dataclass(frozen=True, eq=False)
class _Call:
    identity: Identity | None
    where: str
    since: float
    blocks: bool


class CallsInFlight:
    """Counts calls while they run, and names them as blockers.

    Args:
        on_end: Called whenever a call has ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._calls: set[_Call] = set()

    def __len__(self) -> int:
        """Number of calls, blocking or not."""
        return len(self._calls)

    @contextmanager
    def count(
        self, identity: Identity | None, where: str, *, blocks: bool = True
    ) -> Iterator[None]:
        """Count one call while the block runs.

        Args:
            identity: The call's identity, if it has one.
            where: Name of the call in a blocker: `model_call`, `tool`, `seed`, `verify`, ...
            blocks: False for a call that `prepare` does not wait for.
        """
        call = _Call(identity, where, time.monotonic(), blocks)
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            self._on_end()

    def blockers(self) -> list[Blocker]:
        """The calls that `prepare` waits for."""
        now = time.monotonic()
        return [
            Blocker(
                rollout_id=call.identity.rollout_id if call.identity else None,
                attempt_index=call.identity.attempt if call.identity else None,
                where=call.where,
                age_s=now - call.since,
            )
            for call in self._calls
            if call.blocks
        ]
