"""Data-plane calls that were admitted and are not answered."""

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

    def blocker(self, now: float) -> Blocker:
        return Blocker(
            rollout_id=self.identity.rollout_id if self.identity else None,
            attempt_index=self.identity.attempt if self.identity else None,
            where=self.where,
            age_s=now - self.since,
        )


class CallsInFlight:
    """Counts calls while they run, and names them as blockers.

    Args:
        changed: Called whenever a call has ended.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """No call yet."""
        self._changed = changed
        self._calls: set[_Call] = set()

    def __len__(self) -> int:
        """How many calls there are, blocking or not."""
        return len(self._calls)

    @contextmanager
    def count(self, identity: Identity | None, where: str, *, blocks: bool) -> Iterator[None]:
        """Count one call while the block runs."""
        call = _Call(identity, where, time.monotonic(), blocks)
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            self._changed()

    def blockers(self) -> list[Blocker]:
        """The calls that `prepare` waits for."""
        now = time.monotonic()
        return [call.blocker(now) for call in self._calls if call.blocks]
