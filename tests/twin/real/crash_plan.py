"""The crash points of a twin run on real processes, drawn from a seed.

Guarantees: the same seed and number of points give the same plan, so that a failing seed replays.
Of every six points one kills everything, the others the job's own processes; three fall into a
save, two into a restore, one between them. Those in a save or restore go through its phases in
turn, each time to its beginning, its end, or a share of its usual length into it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from workflows import restore_snapshot, save_snapshot

BLOCK = 6


class Where(StrEnum):
    """The work under way when the crash comes."""

    RUNNING = "running"
    SAVE = "save"
    RESTORE = "restore"


class Place(StrEnum):
    """The part of a phase that a crash hits."""

    BEFORE = "before"
    """Its activity has been scheduled, and has done nothing."""
    INSIDE = "inside"
    AFTER = "after"
    """Its activity has done everything, and has not been answered."""


PHASES = {Where.SAVE: save_snapshot.PHASES, Where.RESTORE: restore_snapshot.PHASES}
_PLACES = (Place.BEFORE, Place.INSIDE, Place.INSIDE, Place.AFTER)


@dataclass(frozen=True)
class Point:
    """One crash."""

    number: int
    """From 1."""
    where: Where
    phase: str
    """Of the save or restore; empty while running."""
    place: Place
    share: float
    """How far inside, as a share of the phase's usual length."""
    machine: bool
    """Everything is killed, Temporal and Ray included."""
    saves: int
    """Whole saves between the last restore and the crash."""
    after_s: float
    """How long rollouts run before each of those saves, and before the crash."""
    claims: bool
    """Whether a consumer claims what is ready, meanwhile."""
    order: int
    """Seed of the order in which the processes are killed."""
    gap_s: float
    """Pause between two kills: the others notice, and act, before they die."""

    def __str__(self) -> str:
        """A line for the report."""
        what = "everything" if self.machine else "the job's processes"
        when = "" if self.where is Where.RUNNING else f" {self.place} {self.phase}"
        if when and self.place is Place.INSIDE:
            when += f" at {self.share:.2f}"
        return f"{self.number}: {what} in {self.where}{when}, gap {self.gap_s * 1000:.0f} ms"


def plan(seed: int, points: int) -> list[Point]:
    """The crash points of a seed, in order."""
    draw = random.Random(seed)
    decks: dict[Where, list[tuple[str, Place]]] = {Where.SAVE: [], Where.RESTORE: []}
    found: list[Point] = []
    while len(found) < points:
        wheres = [Where.SAVE] * 3 + [Where.RESTORE] * 2 + [Where.RUNNING]
        draw.shuffle(wheres)
        if not found:  # nothing has been restored before the first crash
            wheres.sort(key=lambda where: where is Where.RESTORE)
        machine = draw.randrange(BLOCK)
        for place, where in enumerate(wheres):
            drawn = ("", Place.INSIDE)
            if where is not Where.RUNNING:
                decks[where] = decks[where] or _deck(draw, where)
                drawn = decks[where].pop()
            found.append(_point(draw, len(found) + 1, where, drawn, machine=place == machine))
    return found[:points]


def _deck(draw: random.Random, where: Where) -> list[tuple[str, Place]]:
    """Every phase, each at four places; each phase once before any comes again."""
    rounds: list[list[tuple[str, Place]]] = [[] for _ in _PLACES]
    for phase in PHASES[where]:
        for number, place in enumerate(draw.sample(_PLACES, len(_PLACES))):
            rounds[number].append((phase, place))
    return [each for one in rounds for each in draw.sample(one, len(one))]


def _point(
    draw: random.Random, number: int, where: Where, drawn: tuple[str, Place], *, machine: bool
) -> Point:
    saves = draw.choice([0, 0, 1, 1, 2])
    if number == 1:
        saves = max(saves, 1)
    return Point(
        number=number,
        where=where,
        phase=drawn[0],
        place=drawn[1],
        share=draw.random(),
        machine=machine,
        saves=saves if where is not Where.RESTORE else 0,
        after_s=draw.uniform(0.05, 1.2),
        claims=draw.random() < 0.3,
        order=draw.getrandbits(32),
        gap_s=draw.choice([0.0, 0.0, 0.02, 0.1, 0.4]),
    )
