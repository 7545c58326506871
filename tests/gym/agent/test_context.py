"""The servers that a run calls."""

from __future__ import annotations

import httpx

from gym.agent.context import AgentContext
from gym.http import http_client
from gym.peer import Peer
from gym.protocol import Identity


def context(http: httpx.AsyncClient) -> AgentContext:
    return AgentContext(
        model=Peer("model", "http://model", http),
        resources={name: Peer(name, f"http://{name}", http) for name in ("first", "second")},
        tools={"theirs": "second"},
    )


async def test_a_tool_is_its_servers_and_any_other_is_the_environments() -> None:
    """Break: let `AgentContext.peer_of` answer the environment for every tool."""
    async with http_client() as http:
        made = context(http)
        assert (made.environment.name, made.peer_of("theirs").name) == ("first", "second")
        assert made.peer_of("any").name == "first"


async def test_without_identity_no_server_is_told_one() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={})

    async with http_client(httpx.MockTransport(answer)) as http:
        made = context(http).without_identity()
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
        for peer in (made.model, *made.resources.values(), made.peer_of("theirs")):
            await peer.post("x", {}, identity.call(0))
    assert [request.url.host for request in asked] == ["model", "first", "second", "second"]
    assert not any("x-turnpoint-rollout-id" in request.headers for request in asked)
