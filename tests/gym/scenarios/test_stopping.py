"""A server that is being stopped: what it does not finish is a lost connection, no answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from gym.agent.server import AgentServerSettings, create_agent_app
from gym.client import GymClient
from gym.environments.counter import Counter, CounterSettings
from gym.peer import Peer
from gym.protocol import Identity, JoinRequest, ServerUnreachable, StatusRequest
from gym.resource import environment_app
from tests.gym.fleet import ROW, TOKEN, until
from tests.ports import free_port

IDENTITY = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)


@dataclass
class Stoppable:
    """A server that serves, and can be told to stop."""

    server: uvicorn.Server
    client: GymClient
    url: str
    who: StatusRequest

    async def stop_once_busy(self, name: str) -> None:
        """Tell it to stop once a call has begun there, and not before."""
        async with asyncio.timeout(10):
            while not await self._is_busy(name):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self.server.should_exit = True

    async def _is_busy(self, name: str) -> bool:
        counts = (await self.client.status(self.url, name, self.who)).counts
        return counts.in_flight + counts.running > 0


@asynccontextmanager
async def stoppable(app: FastAPI, port: int, name: str) -> AsyncIterator[Stoppable]:
    config = uvicorn.Config(app, port=port, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        async with GymClient(SecretStr(TOKEN)) as client:
            request = JoinRequest(job_id="job", incarnation=1)
            url = f"http://127.0.0.1:{port}"
            joined = await client.join(url, name, request)
            who = StatusRequest(incarnation=1, instance_id=joined.instance_id)
            yield Stoppable(server, client, url, who)
    finally:
        server.should_exit = True
        await serving


async def test_a_tool_of_a_stopped_server_has_no_output(tmp_path: Path) -> None:
    """Break: gym/server/answers.py: let uvicorn answer what it has cancelled."""
    port = free_port()
    settings = CounterSettings(
        name="counter",
        port=port,
        snapshot_root=tmp_path,
        control_token=SecretStr(TOKEN),
        tool_delay_s=60,
    )
    app = environment_app(Counter(settings), settings)
    async with (
        stoppable(app, port, "counter") as stopped,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        peer = Peer("counter", stopped.url, http)
        seeded = await peer.post("seed_session", ROW, IDENTITY.mutation("seed"), {})
        assert seeded.status == 200
        identity = IDENTITY.mutation("call-0")
        call = asyncio.create_task(peer.post("increment_counter", {"count": 1}, identity, {}))
        await stopped.stop_once_busy("counter")
        with pytest.raises(ServerUnreachable):
            await call


async def test_a_run_of_a_stopped_agent_has_not_failed(tmp_path: Path) -> None:
    """Break: gym/server/answers.py: let uvicorn answer what it has cancelled."""
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
    async with stoppable(create_agent_app(settings), port, "simple_agent") as stopped:
        started = stopped.client.run(stopped.url, "simple_agent", IDENTITY, ROW)
        run = asyncio.create_task(started)
        await stopped.stop_once_busy("simple_agent")
        with pytest.raises(ServerUnreachable):
            await run
