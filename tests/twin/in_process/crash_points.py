"""Crash points of the in-process twin: where an execution of the job ends, drawn from the seed.

The code under test passes named steps ("put_staging begins"). A crash point names the step, the
phase of a save or restore, or both, at which everything of the execution stops.

Guarantees: the phases come in turn, in an order drawn from the seed, so that each is hit as often
as the others; if a phase ends before the drawn step comes, the crash falls on the phase's end.
Some points name no phase: they hit any step, or acknowledgements, claims and puts, which few
crashes would hit by chance.
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
"""The phases of an execution that starts at the first prompt."""
PHASES = (*SAVE, *RESTORE, RUNNING, START)
_ANYWHERE = [("", 400), ("", 1500), ("put_", 90), ("acknowledge", 40), ("claim ", 12)]
"""Part of the step's name, and the largest number of such steps that is passed first."""
_IN_PHASE = (1, 1, 2, 4, 10, 30)
_SAVES_BEFORE = (0, 1, 1, 2)


def phase_of(workflow: str, activity: str) -> str:
    """The name of a phase, from its workflow and activity."""
    return f"{'restore' if workflow == 'RestoreSnapshot' else 'save'}: {activity}"


class CrashPoints:
    """Draws the crash points of one twin run.

    Args:
        seed: Of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._decks: dict[tuple[str, ...], list[str]] = {}

    def draw(self, *, fresh: bool) -> CrashPoint:
        """Draw the next one; an execution that starts fresh has no restore to crash in."""
        kind = self.random.random()
        if kind < 0.4:
            what, most = self.random.choice(_ANYWHERE)
            return CrashPoint(what=what, count=self.random.randint(1, most))
        deck = FRESH if fresh else SAVE if kind < 0.7 else RESTORE
        left = self._decks.setdefault(deck, [])
        if not left:
            left += self.random.sample(deck, len(deck))
        phase = left.pop()
        before = self.random.choice(_SAVES_BEFORE) if phase in SAVE else 0
        return CrashPoint(phase=phase, count=self.random.choice(_IN_PHASE), before=before)


class CrashPoint:
    """Stops an execution at one step.

    Args:
        what: Part of the step's name.
        phase: The step must be in this phase; None: in any.
        count: Which of the matching steps it is, from 1.
        before: How many times the phase is passed first.
        armed: False: no crash comes.
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
        self.happened = asyncio.Event()
        self.at = "never"
        self.phase = RUNNING
        """The current phase; once the crash has happened, the phase that it hit."""
        self._what, self._wanted, self._left = what, phase, count
        self._before = before
        self._armed = armed

    async def enter(self, phase: str) -> None:
        """Tell that another phase begins."""
        if self.phase == self._wanted:
            if self._before:
                self._before -= 1
            else:
                self._left = min(self._left, 1)
                await self.reach(f"{self.phase} is over")
        if not self.happened.is_set():
            self.phase = phase
        await self.reach(f"{phase} begins")

    async def reach(self, what: str) -> None:
        """Pass a step, or wait for ever if the crash comes here or has come."""
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

    def disarm(self) -> None:
        """Let no crash come any more: the job is finished, and its rows are compared next."""
        self._armed = False

    def happen_now(self) -> None:
        """Crash now: whatever still runs stops at its next step."""
        self.happened.set()
