"""A stateless resource server: takes the rows of NeMo Gym's `example_single_tool_call`.

No session has any state, so nothing is exported and nothing can be lost: its rollouts go on after
a restore. Start it as `python -m examples.weather --name weather --port P ...`.
"""

from __future__ import annotations

from typing import Any

from gym.resource import Environment, Session, serve_environment, tool


class Weather(Environment[None]):
    """It is always cold."""

    stateless = True

    async def seed(self, row: dict[str, Any]) -> None:
        """No state."""

    @tool
    async def get_weather(self, session: Session[None], city: str) -> dict[str, Any]:
        """The one tool of the rows."""
        return {"city": city, "weather_description": f"The weather in {city} is cold."}

    async def verify(
        self, session: Session[None], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward 1, as the original."""
        return {"reward": 1.0}


if __name__ == "__main__":
    serve_environment(Weather)
