"""The resource server `counter`: takes the rows of NeMo Gym's `example_session_state_mgmt`.

A session counts from the row's `initial_count`; the model is to bring it to `expected_count`.
Start it as `python -m gym.environments.counter --name counter --port P --snapshot-root R
--control-token-file F`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, Field

from gym.resource import Environment, ServerSettings, Session, parse, serve_environment, tool


class CounterSettings(ServerSettings):
    """Settings of the counter."""

    tool_delay_s: float = Field(default=0, ge=0, le=3_600, allow_inf_nan=False)
    """Seconds that each tool takes before it is applied: imitates a slow environment."""


class _SeedRow(BaseModel):
    initial_count: int


class _VerifyRow(BaseModel):
    expected_count: int


class Counter(Environment[int]):
    """One integer per session."""

    def __init__(self, settings: CounterSettings | None = None) -> None:
        self._tool_delay_s = settings.tool_delay_s if settings else 0

    async def seed(self, row: dict[str, Any]) -> int:
        """Count from the row's `initial_count`."""
        return parse(_SeedRow, row).initial_count

    @tool
    async def increment_counter(self, session: Session[int], count: int) -> dict[str, Any]:
        """Add `count`."""
        await asyncio.sleep(self._tool_delay_s)
        session.state += count
        return {"success": True}

    @tool
    async def get_counter_value(self, session: Session[int]) -> dict[str, Any]:
        """The count."""
        await asyncio.sleep(self._tool_delay_s)
        return {"count": session.state}

    async def verify(
        self, session: Session[int], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward 1 if the counter stands at the row's `expected_count`."""
        expected = parse(_VerifyRow, row).expected_count
        return {"reward": float(session.state == expected), "final_count": session.state}

    def export_state(self, state: int) -> bytes:
        """The number in decimal."""
        return str(state).encode()

    def import_state(self, data: bytes) -> int:
        """The number behind its decimal form."""
        return int(data)


if __name__ == "__main__":
    serve_environment(Counter, CounterSettings)
