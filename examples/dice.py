"""A `restart_only` resource server: its state cannot be exported.

A session is a generator, a Python object half way through its code, which cannot be written down.
So a rollout that used it starts over after a restore, and is reported. The rolls follow from the
rollout's id: one that starts over meets the same rolls.

Start it as `python -m examples.dice --name dice --port P ...`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import uuid4

from gym.resource import Environment, Session, inner_identity, serve_environment, tool

Rolls = Iterator[dict[str, int]]


class Dice(Environment[Rolls]):
    """Rolls a die."""

    async def seed(self, row: dict[str, Any]) -> Rolls:
        """A generator that has rolled nothing yet."""
        identity = inner_identity()
        return _rolls(identity.rollout_id if identity else uuid4().hex)

    @tool
    async def roll_die(self, session: Session[Rolls]) -> dict[str, Any]:
        """The next roll."""
        return next(session.state)

    async def verify(
        self, session: Session[Rolls], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward is one more roll, over six."""
        last = next(session.state)
        return {"reward": last["rolled"] / 6, "rolls": last["rolls"] - 1}


def _rolls(rollout_id: str) -> Rolls:
    for number in count():
        digest = hashlib.sha256(f"{rollout_id}/{number}".encode()).digest()
        yield {"rolled": 1 + digest[0] % 6, "rolls": number + 1}


if __name__ == "__main__":
    serve_environment(Dice)
