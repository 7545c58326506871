"""Where a twin run crashes: drawn from a seed, so that a failing seed replays.

Guarantees: the same seed and number of points give the same plan. Of every six points one kills
everything, the others the job's own processes; three fall into a save, two into a restore, one
between them. The instant is a share of the phase's usual length, so that every part of it is met.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

BLOCK = 6


class Where(StrEnum):
    """What runs when the crash comes."""

    RUNNING = "running"
    SAVE = "save"
    RESTORE = "restore"


@dataclass(frozen=True)
class Point:
    """One crash."""

    number: int
    """From 1."""
    where: Where
    machine: bool
    """Everything is killed, Temporal and Ray included."""
    saves: int
    """Whole saves between the last restore and the crash."""
    after_s: float
    """How long rollouts run before each of those saves, and before the crash."""
    share: float
    """When in the save or restore, as a share of its usual length; above 1: after it."""
    order: int
    """Seed of the order in which the processes are killed."""
    gap_s: float
    """Pause between two kills: the others notice, and act, before they die."""

    def __str__(self) -> str:
        """One word for each thing that was drawn."""
        what = "everything" if self.machine else "the job's processes"
        when = "" if self.where is Where.RUNNING else f" at {self.share:.2f}"
        return f"{self.number}: {what} in {self.where}{when}, gap {self.gap_s * 1000:.0f} ms"


def plan(seed: int, points: int) -> list[Point]:
    """The crash points of a seed, in order."""
    draw = random.Random(seed)
    found: list[Point] = []
    while len(found) < points:
        wheres = [Where.SAVE] * 3 + [Where.RESTORE] * 2 + [Where.RUNNING]
        draw.shuffle(wheres)
        if not found:  # nothing has been restored before the first crash
            wheres.sort(key=lambda where: where is Where.RESTORE)
        machine = draw.randrange(BLOCK)
        found += [
            _point(draw, len(found) + place + 1, where, machine=place == machine)
            for place, where in enumerate(wheres)
        ]
    return found[:points]


def _point(draw: random.Random, number: int, where: Where, *, machine: bool) -> Point:
    saves = draw.choice([0, 1, 1, 2])
    if number == 1:
        saves = max(saves, 1)
    return Point(
        number=number,
        where=where,
        machine=machine,
        saves=saves if where is not Where.RESTORE else 0,
        after_s=draw.uniform(0.05, 1.2),
        share=draw.uniform(0, 1.05),
        order=draw.getrandbits(32),
        gap_s=draw.choice([0.0, 0.0, 0.02, 0.1, 0.4]),
    )
