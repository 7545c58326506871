"""The tool-calling agent server: `POST /run`, as NeMo Gym's simple_agent serves it.

Body: a NeMo Gym row as it is, with the identity headers of the run. Answer: the environment's
verify answer as it is, with the result's digest, the last model call and the revisions of the
resource servers in headers. Guarantees: see `gym.agent.part`, `gym.agent.run` and
`gym.agent.tool_loop`. `gym.agent.gymnasium_server` is the same server around another loop.

Started as `python -m gym.agent.server --name simple_agent --port P --model-url URL
--resource counter=URL [--resource other=URL --tool get_weather=other] [--max-steps N] ...`.
A `/run` without identity headers is served as NeMo Gym serves it: it is neither saved nor counted.
"""

from __future__ import annotations

from typing import Annotated

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from gym.agent.context import AgentContext
from gym.agent.part import AgentPart
from gym.agent.run import Loop
from gym.agent.tool_loop import ToolLoop
from gym.checkpoint.phases import Phases
from gym.formats.json_body import json_object
from gym.http import http_client
from gym.peer import Peer
from gym.protocol import (
    HEADER_LAST_MODEL_CALL_ID,
    HEADER_RESOURCE_REVISIONS,
    HEADER_RESULT_DIGEST,
    canonical_json,
)
from gym.protocol.records import BaseUrl
from gym.server.anonymous_calls import caller_of, while_connected
from gym.server.app import close_with, create_app
from gym.server.serve import serve_configured
from gym.server.settings import ServerSettings


def _pairs(value: object) -> object:
    """`a=x`, `a=x,b=y` or a list of those, as a mapping that keeps the order."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    split = [str(part).partition("=") for one in parts for part in str(one).split(",")]
    if not all(name and equals and given for name, equals, given in split):
        raise ValueError("expected NAME=VALUE")
    return {name.strip(): given.strip() for name, _, given in split}


Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(_pairs)]
Addresses = Annotated[dict[str, BaseUrl], NoDecode, BeforeValidator(_pairs)]


class AgentServerSettings(ServerSettings):
    """Settings of an agent server."""

    model_url: BaseUrl
    """Base URL of the policy model server."""
    model_name: str = "policy_model"
    """Its name, for errors and logs."""
    resource: Addresses
    """`NAME=URL`, repeatable; the first is the environment, which verifies."""
    tool: Pairs = Field(default_factory=dict)
    """`TOOL=NAME`, repeatable: tools of other resource servers than the first."""
    max_steps: int | None = Field(default=None, ge=1)
    """Most model calls of a run; after the last one's tools the result is verified."""

    @model_validator(mode="after")
    def _tools_have_servers(self) -> AgentServerSettings:
        if not self.resource:
            raise ValueError("resource: name at least one resource server")
        if unknown := sorted(set(self.tool.values()) - set(self.resource)):
            raise ValueError(f"tool: no such resource server: {', '.join(unknown)}")
        return self


def create_agent_app(
    settings: AgentServerSettings,
    transport: httpx.AsyncBaseTransport | None = None,
    *,
    loop: Loop | None = None,
) -> FastAPI:
    """The application of one agent server.

    Args:
        settings: Its settings.
        transport: Another transport than HTTP to the other servers, for tests.
        loop: Work of its runs between two boundaries; the tool-calling loop by default.
    """
    http = http_client(transport)
    context = AgentContext(
        model=Peer(settings.model_name, settings.model_url, http),
        resources={name: Peer(name, url, http) for name, url in settings.resource.items()},
        tools=settings.tool,
        max_steps=settings.max_steps,
    )
    phases = Phases(settings.name, expect_restore=settings.expect_restore)
    part = AgentPart(phases, context, loop or ToolLoop())
    app = create_app(phases, part, settings)
    close_with(app, http.aclose)
    close_with(app, part.aclose)

    @app.post("/run")
    async def run(request: Request) -> Response:
        identity = await caller_of(phases, request, "run")
        row = await json_object(request)
        if identity is None:
            return JSONResponse(await while_connected(request, part.run_anonymous(row)))
        outcome = await part.run(identity, row)
        headers = {
            HEADER_RESULT_DIGEST: outcome.digest,
            HEADER_RESOURCE_REVISIONS: canonical_json(outcome.resource_revisions).decode(),
        }
        if outcome.last_model_call_id is not None:
            headers[HEADER_LAST_MODEL_CALL_ID] = outcome.last_model_call_id
        return Response(outcome.body, headers=headers, media_type="application/json")

    return app


if __name__ == "__main__":
    serve_configured(create_agent_app, AgentServerSettings)
