"""The gymnasium-style agent server: `POST /run`, as NeMo Gym's gymnasium_agent serves it.

The same server as `gym.agent.server` (runs, parking, results, checkpoints) around another loop:
see `gym.agent.gymnasium_loop`. Answer of `/run`: the row with `response`, the summed `reward`,
`terminated`, `truncated` and the last step's `info`.

Started as `python -m gym.agent.gymnasium_server --name gymnasium_agent --port P --model-url URL
--resource gymnasium=URL [--max-steps N] ...`.
"""

from __future__ import annotations

import httpx
from fastapi import FastAPI
from pydantic import Field, model_validator

from gym.agent.gymnasium_loop import GymnasiumLoop
from gym.agent.server import AgentServerSettings, create_agent_app
from gym.server.serve import serve
from gym.server.settings import settings_from_command_line


class GymnasiumAgentSettings(AgentServerSettings):
    """Settings of a gymnasium-style agent server."""

    max_steps: int | None = Field(default=10, ge=1)
    """Most model calls of a run, and so steps of an episode: what goes on then is truncated."""

    @model_validator(mode="after")
    def _one_environment(self) -> GymnasiumAgentSettings:
        if len(self.resource) != 1 or self.tool:
            raise ValueError("resource: a gymnasium-style agent plays one environment, no tools")
        return self


def create_gymnasium_agent_app(
    settings: GymnasiumAgentSettings, transport: httpx.AsyncBaseTransport | None = None
) -> FastAPI:
    """The application of one gymnasium-style agent server; see `create_agent_app`."""
    return create_agent_app(settings, transport, loop=GymnasiumLoop())


def main() -> None:
    """Serve one agent server, configured by flags and `TURNPOINT_SERVER_*`."""
    settings = settings_from_command_line(GymnasiumAgentSettings)
    serve(create_gymnasium_agent_app(settings), settings)


if __name__ == "__main__":
    main()
