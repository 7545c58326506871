"""A policy and Gym servers whose calls a test can hold, so that rollouts stand where it wants.

`python -m tests.real.held_gym policy|model|agent|counter ...`: the product's own, with points
where a call waits. A test asks for one as it does with `held_worker`: `Live.hold(<point>)`. Who
comes there while it is held waits as well.

| point | who waits |
|---|---|
| `policy.<rollout>.<call>` | a model call in flight on the model server |
| `model.<rollout>.<call>` | a model call that has not got to the model server |
| `agent.<rollout>.run-<n>` | a `/run` that has not got to the agent |
| `agent.acknowledge` | an acknowledgement that has not got to the agent |
| `counter.<rollout>.seed`, `.verify`, `.<call>` | a mutation that runs |
| `policy.completions` | the judge's answer to the verify of one rollout |

A file `<point>.refuse` has the policy refuse one such call for good; `<point>.500`, with a point of
model or agent, has the server answer one such call (`agent.commit`) with an error that is no one's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gym.agent.server import AgentServerSettings, create_agent_app
from gym.environments.counter import Counter, CounterSettings
from gym.http import http_client
from gym.model.server import ModelServerSettings, create_model_app
from gym.peer import Peer
from gym.protocol.identity import PREFIX
from gym.protocol.records import BaseUrl
from gym.resource import Session, environment_app, inner_identity
from gym.server.serve import serve
from gym.server.settings import ServerSettings, settings_from_command_line
from rl.policies.scripted import create_app
from tests.real.state_rows import JUDGE, ROLLOUTS, SCRIPT, State

FOLDER = "HELD_GYM_FOLDER"
"""Environment variable: the folder of the points."""


async def held(point: str) -> None:
    """Wait here while a test holds the point."""
    folder = Path(os.environ[FOLDER])
    reached = folder / f"{point}.reached"
    with contextlib.suppress(FileNotFoundError):
        (folder / point).rename(reached)
    while reached.exists():  # noqa: ASYNC110 - another process removes it
        await asyncio.sleep(0.02)


class HeldCalls:
    """Holds calls before the application has seen them."""

    def __init__(self, app: ASGIApp, *, server: str) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            point = f"{self._server}.{_what(scope)}"
            await held(point)
            for ending, status in (("refuse", 400), ("500", 500)):
                asked = Path(os.environ[FOLDER]) / f"{point}.{ending}"
                if asked.exists():
                    asked.unlink()
                    await JSONResponse({"error": {"code": status}}, status)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _what(scope: Scope) -> str:
    headers = Headers(scope=scope)
    if (rollout_id := headers.get(PREFIX + "rollout-id")) is None:
        return str(scope["path"]).rpartition("/")[2]
    call = headers.get(PREFIX + "model-call-id")
    return f"{rollout_id}.{call or 'run-' + headers.get(PREFIX + 'attempt', '')}"


class HeldCounterSettings(CounterSettings):
    judge_url: BaseUrl
    """Of the judge that the verify of one rollout asks."""


class HeldCounter(Counter):
    """Holds mutations while they run; one rollout's verify asks a judge."""

    def __init__(self, settings: HeldCounterSettings) -> None:
        super().__init__(settings)
        self._http = http_client()
        self._judge = Peer(JUDGE, settings.judge_url, self._http)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def seed(self, row: dict[str, Any]) -> int:
        await _held_mutation()
        return await super().seed(row)

    def tools(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        return {name: _held_first(method) for name, method in super().tools().items()}

    async def verify(
        self, session: Session[int], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        await _held_mutation()
        identity = inner_identity()
        if identity is not None and identity.rollout_id == ROLLOUTS[State.VERIFY]:
            body = {"input": "Is it right?"}
            reply = await self._judge.post("v1/responses", body, identity, {})
            if (error := reply.error) is not None:
                raise error
        return await super().verify(session, row, response)


def _held_first(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)  # the arguments are read from its signature
    async def applied(session: Session[int], **arguments: Any) -> Any:
        await _held_mutation()
        return await method(session, **arguments)

    return applied


async def _held_mutation() -> None:
    identity = inner_identity()
    if identity is not None and identity.request_id is not None:
        place = identity.request_id.split("/")[1]  # `seed`, `verify` or the call
        await held(f"counter.{identity.rollout_id}.{place}")


def main() -> None:
    kind, *flags = sys.argv[1:]
    if kind == "policy":
        parser = argparse.ArgumentParser()
        parser.add_argument("--port", type=int, required=True)
        app = create_app(SCRIPT)
        app.add_middleware(HeldCalls, server=kind)
        uvicorn.run(app, port=parser.parse_args(flags).port, log_level="warning")
        return
    app, settings = _server(kind, flags)
    if kind != "counter":
        app.add_middleware(HeldCalls, server=kind)
    serve(app, settings)


def _server(kind: str, flags: list[str]) -> tuple[FastAPI, ServerSettings]:
    match kind:
        case "model":
            model = settings_from_command_line(ModelServerSettings, flags)
            return create_model_app(model), model
        case "agent":
            agent = settings_from_command_line(AgentServerSettings, flags)
            return create_agent_app(agent), agent
        case "counter":
            counter = settings_from_command_line(HeldCounterSettings, flags)
            return environment_app(HeldCounter(counter), counter), counter
    raise SystemExit(f"no such server: {kind}")


if __name__ == "__main__":
    main()
