"""A `restart_only` resource server: its state cannot be exported.

A session holds a generator, a Python object half way through its code, which nothing can write
down. So a rollout that used it starts over after a restore, and is reported. The rolls follow
from the rollout's id: one that starts over meets the same ones.

Run it as `python -m examples.dice --name dice --port P ...`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from gym.resource.server import ResourceServer, Tool, create_resource_app, inner_identity
from gym.resource.session import Session
from gym.server.serve import serve
from gym.server.settings import ServerSettings, settings_from_command_line


class _Nothing(BaseModel):
    """No arguments."""


class Roll(BaseModel):
    """What a roll answers."""

    rolled: int
    rolls: int
    """How many there were, this one included."""


class Dice(ResourceServer[Iterator[Roll]]):
    """Rolls a die."""

    async def seed(self, row: dict[str, Any]) -> Iterator[Roll]:
        """A generator that was not asked yet."""
        identity = inner_identity()
        return _rolls(identity.rollout_id if identity else uuid4().hex)

    def tools(self) -> Mapping[str, Tool[Iterator[Roll]]]:
        """The one tool."""
        return {"roll_die": Tool(_Nothing, self._roll)}

    async def _roll(self, session: Session[Iterator[Roll]], _: _Nothing) -> Roll:
        assert session.state is not None
        return next(session.state)

    async def verify(
        self, session: Session[Iterator[Roll]], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward is one more roll, over six."""
        assert session.state is not None
        last = next(session.state)
        return {"reward": last.rolled / 6, "rolls": last.rolls - 1}


def _rolls(rollout_id: str) -> Iterator[Roll]:
    number = 0
    while True:
        digest = hashlib.sha256(f"{rollout_id}/{number}".encode()).digest()
        number += 1
        yield Roll(rolled=1 + digest[0] % 6, rolls=number)


def main() -> None:
    """Serve until stopped."""
    settings = settings_from_command_line(ServerSettings)
    serve(create_resource_app(Dice(), settings), settings)


if __name__ == "__main__":
    main()
