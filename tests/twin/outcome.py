"""The result of a twin run of either layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """Counted while it runs."""

    seed: int
    known: Iterable[str] = ()
    """Phases that a crash may meet."""
    points: int = 0
    jobs: int = 0
    saves: int = 0
    restores: int = 0
    differences: list[str] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    """How many crashes hit each phase."""
    meanwhile: Counter[str] = field(default_factory=Counter)
    """How many crashes found something else under way, and how often each mishap happened."""
    spent_s: Counter[str] = field(default_factory=Counter)
    """Seconds by kind of work."""

    @property
    def coverage(self) -> dict[str, int]:
        """Crashes by phase; phases without one are there with 0."""
        return {**dict.fromkeys(self.known, 0), **self.phases}

    def lines(self, took_s: float) -> list[str]:
        """The report, line by line."""
        lines = [f"{count:5} crashes in {phase}" for phase, count in self.coverage.items()]
        lines += [f"{count:5} {what}" for what, count in self.meanwhile.most_common()]
        if self.spent_s:
            spent = (f"{what} {seconds:.0f}" for what, seconds in self.spent_s.most_common())
            lines.append(f"seconds: {', '.join(spent)}")
        each_s = took_s / max(self.points, 1)
        lines.append(
            f"{self.points} points in {took_s:.0f} s ({each_s:.1f} s each), "
            f"{self.jobs} jobs, {self.saves} saves, {self.restores} restores"
        )
        return [*lines, f"{len(self.differences)} differences, seed {self.seed}"]

    def results(self, took_s: float) -> dict[str, Any]:
        """The entry of `docs/results/twin.json`."""
        return {
            "seed": self.seed,
            "points": self.points,
            "differences": len(self.differences),
            "jobs": self.jobs,
            "saves": self.saves,
            "restores": self.restores,
            "seconds": round(took_s),
            "phases": self.coverage,
            "meanwhile": dict(self.meanwhile.most_common()),
        }
