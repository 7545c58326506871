"""The Gym servers of a twin run, of both layers: every kind of agent and resource server.

Four agents (tools with a stateless server, tools with a `restart_only` one, gymnasium, an essay
whose verify asks a judge) and five resource servers, as in `tests.real.test_mixed_story`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

from examples.dice import Dice
from examples.essay import Essay, EssaySettings
from examples.weather import Weather
from gym.agent.gymnasium_server import GymnasiumAgentSettings, create_gymnasium_agent_app
from gym.agent.server import AgentServerSettings, create_agent_app
from gym.environments.counter import Counter, CounterSettings
from gym.environments.gymnasium_server import Gymnasium, GymnasiumServerSettings
from gym.model.generation_client import GenerationEndpoint
from gym.model.server import ModelServerSettings, create_model_app
from gym.protocol import Kind, Role
from gym.resource import environment_app
from gym.server.settings import ServerSettings

MODEL, JUDGE = "policy-model", "judge"
TOOLS, DICE, PLAYER, WRITER = "tools-agent", "dice-agent", "gymnasium-agent", "essay-agent"
KINDS = {
    MODEL: Kind.MODEL,
    JUDGE: Kind.MODEL,
    TOOLS: Kind.AGENT,
    DICE: Kind.AGENT,
    PLAYER: Kind.AGENT,
    WRITER: Kind.AGENT,
    "counter": Kind.RESOURCE,
    "weather": Kind.RESOURCE,
    "dice": Kind.RESOURCE,
    "gymnasium": Kind.RESOURCE,
    "essay": Kind.RESOURCE,
}
_CALLED = {TOOLS: ["counter", "weather"], DICE: ["counter", "dice"], WRITER: ["essay"]}
_TOOLS = {"get_weather": "weather", "roll_die": "dice"}
STEPS, EPISODE_STEPS = 12, 6
"""Above the longest script, and where an episode of a map is cut."""
RESTART_ONLY_AGENT = DICE


def make(
    name: str,
    common: Mapping[str, Any],
    urls: Mapping[str, str],
    generation_url: str,
    *,
    tool_delay_s: float = 0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> FastAPI:
    """One server's application.

    Args:
        name: The server's.
        common: Settings that all servers share.
        urls: Of all servers.
        generation_url: Where completions come from.
        tool_delay_s: Delay of the counter's tools.
        transport: Carries its requests to the others, instead of HTTP.
    """
    match name:
        case "policy-model" | "judge":
            role = Role.AUXILIARY if name == JUDGE else Role.POLICY
            settings = ModelServerSettings(**common, generation_url=generation_url, role=role)
            endpoint = GenerationEndpoint(generation_url, participant=name, transport=transport)
            return create_model_app(settings, endpoint)
        case "gymnasium-agent":
            player = GymnasiumAgentSettings(
                **common,
                model_url=urls[MODEL],
                resource={"gymnasium": urls["gymnasium"]},
                max_steps=EPISODE_STEPS,
            )
            return create_gymnasium_agent_app(player, transport)
        case "tools-agent" | "dice-agent" | "essay-agent":
            called = _CALLED[name]
            agent = AgentServerSettings(
                **common,
                model_url=urls[MODEL],
                resource={resource: urls[resource] for resource in called},
                tool={tool: there for tool, there in _TOOLS.items() if there in called},
                max_steps=STEPS,
            )
            return create_agent_app(agent, transport)
        case "counter":
            counted = CounterSettings(**common, tool_delay_s=tool_delay_s)
            return environment_app(Counter(counted), counted)
        case "gymnasium":
            played = GymnasiumServerSettings(**common)
            return environment_app(Gymnasium(played), played)
        case "essay":
            essay = EssaySettings(**common, judge_url=urls[JUDGE])
            return environment_app(Essay(essay, transport), essay)
        case "weather":
            return environment_app(Weather(), ServerSettings(**common))
        case "dice":
            return environment_app(Dice(), ServerSettings(**common))
    raise ValueError(f"no server {name}; there are: {', '.join(KINDS)}")
