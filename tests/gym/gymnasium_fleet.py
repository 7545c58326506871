"""A gymnasium-style agent and server with a scripted policy, and their rows."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gym.agent.gymnasium_server import GymnasiumAgentSettings, create_gymnasium_agent_app
from gym.environments.gymnasium_server import Gymnasium, GymnasiumServerSettings
from gym.protocol import (
    Identity,
    Kind,
    Phase,
)
from gym.resource import environment_app
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import MODEL, Fleet, fleet_of
from tests.gym.scripted_generation import ScriptedGeneration

AGENT, ENVIRONMENT = "gymnasium_agent", "gymnasium"


EXAMPLES = Path(__file__).parents[2] / "examples" / "gymnasium"


BLACKJACK = "resources_servers/blackjack/data/example.jsonl"


def rows_of(name: str) -> list[dict[str, Any]]:
    """Rows of an example file, or NeMo Gym's own blackjack rows."""
    path = EXAMPLES / f"{name}.jsonl"
    if name == "blackjack":
        path = Path(str(importlib.metadata.distribution("nemo-gym").locate_file(BLACKJACK)))
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


NAMES = ("blackjack", "cliff_walking", "frozen_lake", "taxi")


MIXED = {f"p{n}_g{k}": rows_of(name)[k] for n, name in enumerate(NAMES) for k in range(5)}
"""Twenty rollouts, five of each environment."""


@asynccontextmanager
async def playing(
    root: Path,
    generation: FakeGeneration,
    *environments: str,
    expect_restore: bool = False,
    max_steps: int = 12,
) -> AsyncIterator[Fleet]:
    """A gymnasium agent and server; nothing has joined yet."""
    given = {"environments": environments} if environments else {}

    def agent(common: dict[str, Any], urls: Any) -> Any:
        resource = {ENVIRONMENT: urls[ENVIRONMENT]}
        return create_gymnasium_agent_app(
            GymnasiumAgentSettings(
                **common, model_url=urls[MODEL], resource=resource, max_steps=max_steps
            )
        )

    def server(common: dict[str, Any], urls: Any) -> Any:
        settings = GymnasiumServerSettings(**common, **given)
        return environment_app(Gymnasium(settings), settings)

    servers = {AGENT: (Kind.AGENT, agent), ENVIRONMENT: (Kind.RESOURCE, server)}
    async with fleet_of(root, generation, servers, expect_restore=expect_restore) as made:
        yield made


async def parked(servers: Fleet, call: int, rows: dict[str, Any]) -> list[asyncio.Task[Any]]:
    """Start rollouts and prepare everything while those that are still going wait for a call.

    Results of rollouts that end before are kept by the agent, so they are not counted here.
    """
    generation = servers.generation
    await generation.hold_from(call)
    runs = [asyncio.create_task(servers.run(name, row=row)) for name, row in rows.items()]
    await generation.until_waiting(f"call-{call}", len(rows))
    closing = asyncio.create_task(servers.prepare(MODEL))
    async with asyncio.timeout(10):
        while (await servers.status(MODEL)).phase is not Phase.PREPARING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await generation.hold_from(None)
    assert (await closing).ready
    return runs


def strip(result: dict[str, Any]) -> str:
    return json.dumps(result, sort_keys=True)


async def undisturbed(root: Path, rows: dict[str, Any], **options: Any) -> dict[str, Any]:
    async with playing(root, ScriptedGeneration(), **options) as servers:
        await servers.join()
        answers = await asyncio.gather(*(servers.run(name, row=row) for name, row in rows.items()))
        return dict(zip(rows, (result for result, _ in answers), strict=True))


def turns(result: dict[str, Any]) -> list[Any]:
    output = result["response"]["output"]
    return [item for item in output if item.get("type") in ("function_call", "message")]


async def post(
    servers: Fleet, path: str, body: Any, place: str, *, number: int = 0, run: int = 0
) -> httpx.Response:
    identity = Identity(incarnation=servers.incarnation, rollout_id="p0_g0", attempt=run)
    async with httpx.AsyncClient(base_url=servers.urls[ENVIRONMENT], trust_env=False) as http:
        headers = identity.mutation(place, number).headers()
        return await http.post(path, json=body, headers=headers)


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    return {"output": [{"type": "message", "role": "assistant", "content": [part]}]}


def called(*actions: Any) -> dict[str, Any]:
    return {
        "output": [
            {
                "type": "function_call",
                "call_id": f"c{number}",
                "name": "act",
                "arguments": json.dumps({"action": action}),
            }
            for number, action in enumerate(actions)
        ]
    }


CART_POLE = {
    "responses_create_params": {
        "input": "Keep the pole up: <action>0</action> pushes left, <action>1</action> right."
    },
    "environment": "CartPole-v1",
}
