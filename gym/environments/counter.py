"""The resource server `counter`: takes the rows of NeMo Gym's `example_session_state_mgmt`.

A session counts from the row's `initial_count`; the model is to bring it to `expected_count`.
Verify answers the count it found as `final_count`. Run it as
`python -m gym.environments.counter --name counter --port P --snapshot-root R --control-token-file
F`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gym.resource.server import ResourceServer, Tool, create_resource_app, parsed
from gym.resource.session import Session
from gym.server.serve import serve
from gym.server.settings import ServerSettings, settings_from_command_line


class CounterSettings(ServerSettings):
    """What the counter is told besides."""

    tool_delay_s: float = Field(default=0, ge=0, le=3_600, allow_inf_nan=False)
    """How long each tool takes before it is applied, in seconds: imitates a slow environment."""


class _Row(BaseModel):
    """The row's own keys that seed and verify need; all others pass through."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class _SeedRow(_Row):
    initial_count: int


class _VerifyRow(_Row):
    expected_count: int


class _Increment(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)
    count: int


class _Nothing(BaseModel):
    """No arguments; those that come are ignored, as the original does."""


class Counter(ResourceServer[int]):
    """One integer per session.

    Args:
        tool_delay_s: Seconds that each tool takes before it is applied.
    """

    def __init__(self, tool_delay_s: float = 0) -> None:
        """Keep the delay; sessions live in the server around."""
        self._tool_delay_s = tool_delay_s

    async def seed(self, row: dict[str, Any]) -> int:
        """Count from the row's `initial_count`."""
        return parsed(_SeedRow, row).initial_count

    def tools(self) -> Mapping[str, Tool[int]]:
        """The two tools of the rows."""
        return {
            "increment_counter": Tool(_Increment, self._increment),
            "get_counter_value": Tool(_Nothing, self._value),
        }

    async def _increment(self, session: Session[int], arguments: _Increment) -> dict[str, Any]:
        await asyncio.sleep(self._tool_delay_s)
        session.state = _count(session) + arguments.count
        return {"success": True}

    async def _value(self, session: Session[int], _: _Nothing) -> dict[str, Any]:
        await asyncio.sleep(self._tool_delay_s)
        return {"count": _count(session)}

    async def verify(
        self, session: Session[int], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward 1 if the counter stands at the row's `expected_count`."""
        expected = parsed(_VerifyRow, row).expected_count
        count = _count(session)
        return {"reward": float(count == expected), "final_count": count}

    def export_state(self, state: int) -> bytes:
        """The number in decimal."""
        return str(state).encode()

    def import_state(self, data: bytes) -> int:
        """The number behind its decimal form."""
        return int(data)


def _count(session: Session[int]) -> int:
    assert session.state is not None  # seeded: the server refuses calls of a session that is not
    return session.state


def main() -> None:
    """Serve until stopped."""
    settings = settings_from_command_line(CounterSettings)
    serve(create_resource_app(Counter(settings.tool_delay_s), settings), settings)


if __name__ == "__main__":
    main()
