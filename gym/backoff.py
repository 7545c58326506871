"""How long to wait before a call that may pass later is issued again."""

from __future__ import annotations

import random

FIRST_S = 0.05
MOST_S = 1.0


class Backoff:
    """Waits that double from `first_s` up to `most_s`, each shortened by up to a half at random.

    The randomness keeps many rollouts from calling a server that came back at one instant.
    """

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        """Start at `first_s`."""
        self._next_s = first_s
        self._most_s = most_s

    def next_s(self) -> float:
        """The next wait, in seconds."""
        wait_s = self._next_s
        self._next_s = min(self._most_s, wait_s * 2)
        return wait_s * random.uniform(0.5, 1.0)
