"""A stateless resource server: takes the rows of NeMo Gym's `example_single_tool_call`.

No session has any state, so nothing is exported and nothing can be lost: its rollouts continue
after a restore. Run it as `python -m examples.weather --name weather --port P ...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from gym.resource.server import ResourceServer, Tool, create_resource_app
from gym.resource.session import Session
from gym.server.serve import serve
from gym.server.settings import ServerSettings, settings_from_command_line


class _City(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)
    city: str


class Weather(ResourceServer[None]):
    """It is always cold."""

    stateless = True

    async def seed(self, row: dict[str, Any]) -> None:
        """Nothing."""

    def tools(self) -> Mapping[str, Tool[None]]:
        """The one tool of the rows."""
        return {"get_weather": Tool(_City, self._weather)}

    async def _weather(self, session: Session[None], arguments: _City) -> dict[str, Any]:
        return {
            "city": arguments.city,
            "weather_description": f"The weather in {arguments.city} is cold.",
        }

    async def verify(
        self, session: Session[None], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward 1, as the original."""
        return {"reward": 1.0}


def main() -> None:
    """Serve until stopped."""
    settings = settings_from_command_line(ServerSettings)
    serve(create_resource_app(Weather(), settings), settings)


if __name__ == "__main__":
    main()
