"""A model or resource server that was restarted under an agent's runs, and what looks like it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from gym.environments.counter import Counter, CounterSettings
from gym.model.server import ModelServerSettings, create_model_app
from gym.protocol import NotJoined, ResumeRequest
from gym.resource import environment_app
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, TOKEN, Fleet, fleet, until
from tests.gym.meddling import Meddling
from tests.gym.rollouts import files_of, parked_at


class Restarting(httpx.AsyncBaseTransport):
    """Real HTTP, but to servers that have restarted: those answer as the new process does.

    Attributes:
        asked: How often each was asked since.
    """

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self._lives: dict[int, tuple[str, httpx.AsyncBaseTransport]] = {}
        self._inner = httpx.AsyncHTTPTransport()

    def restart(self, servers: Fleet, name: str, *, expect_restore: bool) -> None:
        common: dict[str, Any] = {
            "name": name,
            "port": httpx.URL(servers.urls[name]).port,
            "snapshot_root": servers.root,
            "control_token": SecretStr(TOKEN),
            "expect_restore": expect_restore,
        }
        app: FastAPI
        if name == MODEL:
            settings = ModelServerSettings(**common, generation_url="http://127.0.0.1:1/v1")
            app = create_model_app(settings)
        else:
            app = environment_app(Counter(), CounterSettings(**common))
        self.asked[name] = 0
        self._lives[common["port"]] = (name, httpx.ASGITransport(app))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if (life := self._lives.get(request.url.port or 0)) is None:
            return await self._inner.handle_async_request(request)
        self.asked[life[0]] += 1
        return await life[1].handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize("expect_restore", [False, True])
@pytest.mark.parametrize("name", [MODEL, COUNTER])
async def test_a_run_that_meets_a_restarted_server_fails_and_names_it(
    tmp_path: Path, name: str, expect_restore: bool
) -> None:
    """RL takes it for a lost job (tests/rl/controller/test_rollout_pump.py), also unsupervised.

    Break: gym/agent/run.py: issue the call again for as long as it can be repeated.
    """
    generation, restarting = FakeGeneration(), Restarting()
    async with fleet(tmp_path, generation, agent_transport=restarting) as servers:
        await servers.join()
        await generation.hold_from(2)
        run = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-2")
        restarting.restart(servers, name, expect_restore=expect_restore)
        await generation.hold_from(None)
        for again in (run, servers.run("p0_g0")):  # kept: who comes again hears the same
            with pytest.raises(NotJoined, match=f"{name} has not joined .*restarted.*restore"):
                await asyncio.wait_for(again, 10)
        assert restarting.asked == {name: 1}


async def _resume(servers: Fleet, name: str) -> None:
    request = ResumeRequest(**servers.who(name), checkpoint_id="r1")
    await servers.client.resume(servers.urls[name], name, request)


async def test_a_restored_run_waits_for_servers_that_are_not_resumed_yet(tmp_path: Path) -> None:
    """A restore that is under way fails no run of its own: who has joined it is not another life.

    Resumed here in the wrong order, agent first, so that its run meets both closed.
    Break: gym/agent/run.py: take `checkpoint_parked` for another life as well.
    """
    generation, meddling = FakeGeneration(), Meddling()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        (run,) = await parked_at(servers, 2, "p0_g0")
        answers = await servers.commit_all()
        run.cancel()  # the job dies
    async with fleet(
        tmp_path, generation, expect_restore=True, agent_transport=meddling
    ) as restored:
        await restored.join(2)
        await restored.restore_all(files_of(answers))
        await _resume(restored, AGENT)
        run = asyncio.create_task(restored.run("p0_g0", 1))
        await until(lambda: len(meddling.with_id("call-3")) >= 2)  # refused, and issued again
        await _resume(restored, MODEL)
        await until(lambda: len(meddling.with_id("p0_g0-a1/call-3/0")) >= 2)
        await _resume(restored, COUNTER)
        assert (await asyncio.wait_for(run, 10))[0]["final_count"] == 18
