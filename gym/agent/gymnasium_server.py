"""The gymnasium-style agent server: `POST /run`, as NeMo Gym's gymnasium_agent serves it.

The same server as `gym.agent.server` (runs, parking, results, checkpoints) around another loop:
see `gym.agent.gymnasium_loop`. Answer of `/run`: the row with `response`, the summed `reward`,
`terminated`, `truncated` and the last step's `info`.

Started as `python -m gym.agent.gymnasium_server --name gymnasium_agent --port P --model-url URL
--resource gymnasium=URL [--max-steps N] ...`.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field, model_validator

from gym.agent.gymnasium_loop import GymnasiumLoop
from gym.agent.server import AgentServerSettings, create_agent_app
from gym.server.serve import serve_configured


class GymnasiumAgentSettings(AgentServerSettings):
    """Settings of a gymnasium-style agent server."""

    max_steps: int | None = Field(default=10, ge=1)
    """Most model calls of a run, and so steps of an episode, which is truncated then."""

    @model_validator(mode="after")
    def _one_environment(self) -> GymnasiumAgentSettings:
        if len(self.resource) != 1 or self.tool:
            raise ValueError("resource: a gymnasium-style agent plays one environment, no tools")
        return self


create_gymnasium_agent_app = partial(create_agent_app, loop=GymnasiumLoop())
"""The application of one gymnasium-style agent server; see `create_agent_app`."""

if __name__ == "__main__":
    serve_configured(create_gymnasium_agent_app, GymnasiumAgentSettings)
