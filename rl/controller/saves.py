"""What the controller keeps of the save that holds it, and of those that have ended."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from gym.protocol import StaleCheckpoint, WrittenFile
from rl.messages import SINGLE_CONTROLLER, BeginAnswer, CutAnswer
from rl.snapshots.names import number_of

_REMEMBERED = 1024
"""As many ids as a Gym server remembers (design section 6, `resume`)."""
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


class EndedSaves:
    """The ids that have ended here, the newest 1,024."""

    def __init__(self) -> None:
        """None yet."""
        self._ended: OrderedDict[str, Ended] = OrderedDict()

    def remember(self, checkpoint_id: str) -> Ended:
        """From now on the id can do nothing here; what is known of it, to be filled in."""
        ended = self._ended.setdefault(checkpoint_id, Ended())
        self._ended.move_to_end(checkpoint_id)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return ended

    def refuse(self, checkpoint_id: str) -> None:
        """Raise `StaleCheckpoint` for an id that has ended."""
        if checkpoint_id in self._ended:
            raise stale(checkpoint_id)


def stale(checkpoint_id: str) -> StaleCheckpoint:
    """The error for whoever still works for a save that has ended here."""
    return StaleCheckpoint(
        f"checkpoint {checkpoint_id} has ended here", participant=SINGLE_CONTROLLER
    )
