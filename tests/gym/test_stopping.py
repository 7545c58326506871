"""A server that is being stopped: what it does not finish is a lost connection, no answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from gym.agent_calls import Peer
from gym.agent_server import AgentServerSettings, create_agent_app
from gym.client import GymClient
from gym.counter import Counter, CounterSettings
from gym.protocol import Identity, JoinRequest, ServerUnreachable
from gym.resource_server import create_resource_app
from tests.gym.fleet import ROW, TOKEN, until
from tests.ports import free_port

IDENTITY = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)


@asynccontextmanager
async def stoppable(
    app: FastAPI, port: int, name: str
) -> AsyncIterator[tuple[uvicorn.Server, GymClient]]:
    config = uvicorn.Config(app, port=port, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        async with GymClient(SecretStr(TOKEN)) as client:
            request = JoinRequest(job_id="job", incarnation=1)
            await client.join(f"http://127.0.0.1:{port}", name, request)
            yield server, client
    finally:
        server.should_exit = True
        await serving


async def test_a_tool_of_a_stopped_server_has_no_output(tmp_path: Path) -> None:
    """Break: gym/control_routes.py: let uvicorn answer what it has cancelled."""
    port = free_port()
    settings = CounterSettings(
        name="counter", port=port, snapshot_root=tmp_path, control_token=SecretStr(TOKEN)
    )
    app = create_resource_app(Counter(tool_delay_s=60), settings)
    async with (
        stoppable(app, port, "counter") as (server, _),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        peer = Peer("counter", f"http://127.0.0.1:{port}", http)
        seeded = await peer.post("seed_session", ROW, IDENTITY.mutation("seed"), {})
        assert seeded.status == 200
        identity = IDENTITY.mutation("call-0")
        call = asyncio.create_task(peer.post("increment_counter", {"count": 1}, identity, {}))
        await asyncio.sleep(0.1)
        server.should_exit = True
        with pytest.raises(ServerUnreachable):
            await call


async def test_a_run_of_a_stopped_agent_has_not_failed(tmp_path: Path) -> None:
    """Break: gym/control_routes.py: let uvicorn answer what it has cancelled."""
    port = free_port()
    nobody = f"http://127.0.0.1:{free_port()}"
    settings = AgentServerSettings(
        name="simple_agent",
        port=port,
        snapshot_root=tmp_path,
        control_token=SecretStr(TOKEN),
        model_url=nobody,
        resource={"counter": nobody},
    )
    async with stoppable(create_agent_app(settings), port, "simple_agent") as (server, client):
        url = f"http://127.0.0.1:{port}"
        run = asyncio.create_task(client.run(url, "simple_agent", IDENTITY, ROW))
        await asyncio.sleep(0.1)
        server.should_exit = True
        with pytest.raises(ServerUnreachable):
            await run
