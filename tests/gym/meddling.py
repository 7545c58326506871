"""HTTP of an agent whose answers are lost, refused or replaced."""

from __future__ import annotations

from typing import Any

import httpx

from gym.protocol import (
    ResumeRequest,
    TurnpointError,
)
from tests.gym.fleet import Fleet


class Meddling(httpx.AsyncBaseTransport):
    """Real HTTP, with answers lost or replaced by path (each entry once, in order)."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.refused: list[str] = []
        self.instead: dict[str, list[httpx.Response]] = {}
        self.sent: list[tuple[str, str | None, bytes]] = []
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.rpartition("/")[2]
        name = request.headers.get("x-turnpoint-request-id") or request.headers.get(
            "x-turnpoint-model-call-id"
        )
        self.sent.append((path, name, request.content))
        if path in self.refused:
            self.refused.remove(path)
            raise httpx.ConnectError("refused")
        if self.instead.get(path):
            return self.instead[path].pop(0)
        answer = await self._inner.handle_async_request(request)
        if path in self.lost:
            self.lost.remove(path)
            await answer.aread()
            await answer.aclose()
            raise httpx.ReadError("reset")
        return answer

    async def aclose(self) -> None:
        await self._inner.aclose()

    def with_id(self, name: str) -> list[bytes]:
        return [content for _, given, content in self.sent if given == name]


def typed(error: TurnpointError) -> httpx.Response:
    return httpx.Response(error.status, json=error.body())


def outputs(result: dict[str, Any]) -> list[str]:
    items = result["response"]["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


async def resume_one(servers: Fleet, name: str) -> None:
    request = ResumeRequest(**servers.who(name), checkpoint_id="c1")
    await servers.client.resume(servers.urls[name], name, request)
