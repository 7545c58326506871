"""A server with every control route, reached in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest_asyncio

from gym.checkpoint.phases import Phases
from gym.protocol import Kind
from gym.server.app import create_app
from tests.gym.parts import FakePart, settings


@pytest_asyncio.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    part = FakePart()
    part.kind = Kind.AGENT  # which has every control route
    app = create_app(Phases("fake"), part, settings(tmp_path), guarded=("/private",))

    @app.get("/private/thing")
    async def private() -> dict[str, str]:
        return {"a": "b"}

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret words of a conversation")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client
