"""At which moment a life of the in-process twin ends.

Guarantees: the phases of saves and restores come in turn, in an order drawn from the seed, so
that each is met as often as the others; a phase that is over without the drawn moment ends the
life where it ends. In between lie crashes at any moment, and where few would fall by chance:
around acknowledgements, claims and puts.
"""

from __future__ import annotations

import asyncio
import random

from workflows import restore_snapshot, save_snapshot

RUNNING = "running"
START = "start"
SAVE = tuple(f"save: {phase}" for phase in (*save_snapshot.PHASES, "prune_snapshots"))
RESTORE = tuple(f"restore: {phase}" for phase in restore_snapshot.PHASES)
FRESH = (START, *SAVE)
"""What a life goes through that begins a new line."""
PHASES = (*SAVE, *RESTORE, RUNNING, START)
_ANYWHERE = [("", 400), ("", 1500), ("put_", 90), ("acknowledge", 40), ("claim ", 12)]
"""What the moment is called, and which one of those at most."""
_IN_PHASE = (1, 1, 2, 4, 10, 30)
_SAVES_BEFORE = (0, 1, 1, 2)


def phase_of(workflow: str, activity: str) -> str:
    """What a phase is called here, by the workflow and activity that it is."""
    return f"{'restore' if workflow == 'RestoreSnapshot' else 'save'}: {activity}"


class Draw:
    """Chooses the moments of one run, life after life.

    Args:
        seed: Of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        """Nothing is drawn yet."""
        self.random = random.Random(seed)
        self._decks: dict[tuple[str, ...], list[str]] = {}

    def dead(self, *, fresh: bool) -> Dead:
        """Where a life ends; one that starts fresh has no restore to end in."""
        kind = self.random.random()
        if kind < 0.4:
            what, most = self.random.choice(_ANYWHERE)
            return Dead(what=what, count=self.random.randint(1, most))
        deck = FRESH if fresh else SAVE if kind < 0.7 else RESTORE
        left = self._decks.setdefault(deck, [])
        if not left:
            left += self.random.sample(deck, len(deck))
        phase = left.pop()
        before = self.random.choice(_SAVES_BEFORE) if phase in SAVE else 0
        return Dead(phase=phase, count=self.random.choice(_IN_PHASE), before=before)


class Dead:
    """Ends a life.

    Args:
        what: Part of the moment's name.
        phase: It must be in this one; None: in any.
        count: Which of those moments it is.
        before: How often that phase is passed before.
        armed: False: never.
    """

    def __init__(
        self,
        *,
        what: str = "",
        phase: str | None = None,
        count: int = 1,
        before: int = 0,
        armed: bool = True,
    ) -> None:
        """Nothing has happened."""
        self.happened = asyncio.Event()
        self.at = "never"
        self.phase = RUNNING
        """What runs now; once it has happened: what ran then."""
        self._what, self._wanted, self._left = what, phase, count
        self._before = before
        self._armed = armed

    async def enter(self, phase: str) -> None:
        """Another phase begins."""
        if self.phase == self._wanted:
            if self._before:
                self._before -= 1
            else:
                self._left = min(self._left, 1)
                await self.moment(f"{self.phase} is over")
        if not self.happened.is_set():
            self.phase = phase
        await self.moment(f"{phase} begins")

    async def moment(self, what: str) -> None:
        """Go on, or never again."""
        if not self.happened.is_set():
            met = self._what in what and self._wanted in (None, self.phase)
            if not self._armed or not met or self._before:
                return
            self._left -= 1
            if self._left > 0:
                return
            self.at = what
            self.happened.set()
        await asyncio.Event().wait()

    def survive(self) -> None:
        """The job has ended before this life: who looks at what is left meets no end of it."""
        self._armed = False

    def end(self) -> None:
        """From here on nothing of this life has an effect: its next moment is its last."""
        self.happened.set()
