"""A model server without sockets, and its endpoint, which can be cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from gym.model.generation_client import GenerationEndpoint
from gym.model.server import ModelServerSettings, create_model_app
from gym.protocol import (
    Identity,
)
from gym.protocol.control import BASE_PATH
from tests.gym.fake_generation import FakeGeneration

AUTH = {"authorization": "Bearer secret"}


BODY = {"input": "hello"}


class Server:
    """One model server without sockets, and its endpoint, which can be cut off."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.generation = FakeGeneration()
        self.down = 0
        self.root = root
        self.ids: dict[str, Any] = {}
        given = ModelServerSettings(
            name="policy_model",
            port=1,
            snapshot_root=root,
            control_token=SecretStr("secret"),
            generation_url="http://generation/v1",
            **settings,
        )
        inner = httpx.ASGITransport(self.generation.app())
        server = self

        class Cuts(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if server.down > 0:
                    server.down -= 1
                    raise httpx.ConnectError("refused")
                return await inner.handle_async_request(request)

        endpoint = GenerationEndpoint(
            "http://generation/v1", participant="policy_model", transport=Cuts()
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_model_app(given, endpoint)),
            base_url="http://model",
        )

    async def control(self, operation: str, **fields: Any) -> httpx.Response:
        body = self.ids | fields
        return await self.http.post(f"{BASE_PATH}/{operation}", json=body, headers=AUTH)

    async def join(self) -> None:
        answer = (await self.control("join", job_id="job", incarnation=1)).json()
        self.ids = {"incarnation": 1, "instance_id": answer["instance_id"]}

    async def prepare(self, **fields: Any) -> httpx.Response:
        given = {"checkpoint_id": "c1", "budget_s": 5, "lease_s": 30} | fields
        return await self.control("prepare", **given)

    async def call(
        self, index: int = 0, *, rollout: str = "p0_g0", attempt: int = 0, body: Any = None
    ) -> httpx.Response:
        identity = Identity(incarnation=1, rollout_id=rollout, attempt=attempt).call(index)
        return await self.http.post("/v1/responses", json=body or BODY, headers=identity.headers())
