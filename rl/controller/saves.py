"""What the controller keeps of the save that holds it, and of those that have ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gym.protocol import WrittenFile
from rl.messages import BeginAnswer, CutAnswer
from rl.snapshots.names import number_of

Mark = tuple[int, int]
"""Mutations so far and model calls staged: equal marks mean that nothing has changed."""


@dataclass
class Save:
    """The save that holds the controller."""

    checkpoint_id: str
    lease_s: float
    begun: asyncio.Task[BeginAnswer] = field(init=False)
    closed_at: float | None = None
    """When admission closed, on the clock that measures the pause."""
    owed_at_close: frozenset[str] = frozenset()
    """Rollouts whose acknowledgement was owed at that moment."""
    cut: asyncio.Task[CutAnswer] | None = None
    storing: asyncio.Task[list[WrittenFile]] | None = None
    """TransferQueue's save: nothing can stop it, only its return is waited for."""
    mark: Mark | None = None
    ended: bool = False


@dataclass
class Ended:
    """What is remembered of a checkpoint id that can no longer do anything."""

    pause_s: float | None = None
    mark: Mark | None = None


@dataclass
class LastSnapshot:
    """The newest snapshot: saved here, or the one the job was restored from."""

    name: str | None = None
    mark: Mark | None = None

    def or_newer(self, name: str, mark: Mark | None) -> LastSnapshot:
        """The newer of this one and `name`: an older save may be told of once more, late."""
        if self.name is not None and number_of(name) < number_of(self.name):
            return self
        return LastSnapshot(name, mark)
