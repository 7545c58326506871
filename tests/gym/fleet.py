"""Gym servers with a fake generation endpoint, over real HTTP: by default model, agent, counter.

In-process: uvicorn in the test's own loop, so that a test can reach into the servers. The
control calls go in the design's order, as the NemoGym actor sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from gym.agent.server import AgentServerSettings, create_agent_app
from gym.client import GymClient
from gym.environments.counter import Counter, CounterSettings
from gym.model.server import ModelServerSettings, create_model_app
from gym.protocol import (
    CommitAnswer,
    CommitRequest,
    Identity,
    JoinRequest,
    Kind,
    PrepareAnswer,
    PrepareRequest,
    RestoreAnswer,
    RestoreRequest,
    ResumeRequest,
    Status,
    StatusRequest,
    WrittenFile,
)
from gym.resource import environment_app
from tests.gym.fake_generation import FakeGeneration
from tests.ports import free_port

TOKEN = "test-control-token"
MODEL, AGENT, COUNTER = "policy_model", "simple_agent", "counter"
NAMES = (MODEL, AGENT, COUNTER)
PARAMETERS = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
ROW: dict[str, Any] = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "z\u00e4hle"}],
        "tools": [
            {"type": "function", "name": "increment_counter", "parameters": PARAMETERS},
            {"type": "function", "name": "get_counter_value", "parameters": {"type": "object"}},
        ],
    },
    "initial_count": 3,
    "expected_count": 18,
}
"""Increments that reach the expected count in six turns of `FakeGeneration`."""


async def until(holds: Callable[[], bool], within_s: float = 10) -> None:
    """Return when a condition without an event of its own holds."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(apps: dict[int, FastAPI]) -> AsyncIterator[None]:
    """Serve applications in this loop, by port."""
    servers = []
    for port, app in apps.items():
        config = uvicorn.Config(app, port=port, log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        servers.append(server)
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    try:
        await until(lambda: all(server.started for server in servers))
        yield
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


DEFAULT_KINDS = {MODEL: Kind.MODEL, AGENT: Kind.AGENT, COUNTER: Kind.RESOURCE}


@dataclass
class Fleet:
    """Joined or joinable servers, one of them an agent, one a policy model."""

    root: Path
    client: GymClient
    generation: FakeGeneration
    urls: dict[str, str]
    incarnation: int = 1
    instances: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=lambda: dict(DEFAULT_KINDS))
    """By server."""

    def of(self, *kinds: Kind) -> list[str]:
        """Names of the servers of these kinds, in the kinds' order."""
        return [name for kind in kinds for name in self.kinds if self.kinds[name] is kind]

    @property
    def agent(self) -> str:
        return self.of(Kind.AGENT)[0]

    async def join(self, incarnation: int = 1) -> None:
        self.incarnation = incarnation
        for name in self.kinds:
            request = JoinRequest(job_id="job", incarnation=incarnation)
            answer = await self.client.join(self.urls[name], name, request)
            self.instances[name] = answer.instance_id

    def who(self, name: str) -> dict[str, Any]:
        return {"incarnation": self.incarnation, "instance_id": self.instances[name]}

    async def run(
        self, rollout_id: str, attempt: int = 0, row: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        identity = Identity(incarnation=self.incarnation, rollout_id=rollout_id, attempt=attempt)
        agent = self.agent
        body, headers = await self.client.run(self.urls[agent], agent, identity, row or ROW)
        return json.loads(body), dict(headers)

    async def prepare(
        self, name: str, checkpoint_id: str = "c1", budget_s: float = 10, lease_s: float = 30
    ) -> PrepareAnswer:
        request = PrepareRequest(
            **self.who(name), checkpoint_id=checkpoint_id, budget_s=budget_s, lease_s=lease_s
        )
        return await self.client.prepare(self.urls[name], name, request)

    async def prepare_all(self, checkpoint_id: str = "c1") -> list[PrepareAnswer]:
        order = self.of(Kind.MODEL, Kind.AGENT, Kind.RESOURCE)
        return [await self.prepare(name, checkpoint_id) for name in order]

    async def commit_all(self, checkpoint_id: str = "c1") -> dict[str, CommitAnswer]:
        folder = self.folder(checkpoint_id)
        (folder / "gym").mkdir(parents=True, exist_ok=True)
        answers: dict[str, CommitAnswer] = {}
        for name in self.of(Kind.AGENT, Kind.MODEL, Kind.RESOURCE):
            indexes = [
                file
                for file in (answers[self.agent].files if name == MODEL else [])
                if file.path.endswith("continuations.jsonl")
            ]
            request = CommitRequest(
                **self.who(name),
                checkpoint_id=checkpoint_id,
                budget_s=10,
                folder=str(folder),
                continuation_indexes=indexes,
            )
            answers[name] = await self.client.commit(self.urls[name], name, request)
        return answers

    async def resume_all(self, identifier: str = "c1") -> None:
        for name in self.of(Kind.RESOURCE, Kind.MODEL, Kind.AGENT):
            request = ResumeRequest(**self.who(name), checkpoint_id=identifier)
            await self.client.resume(self.urls[name], name, request)

    async def restore_all(
        self, files: dict[str, list[WrittenFile]], restore_id: str = "r1", source: str = "c1"
    ) -> dict[str, RestoreAnswer]:
        answers = {}
        for name in self.of(Kind.MODEL, Kind.AGENT, Kind.RESOURCE):
            request = RestoreRequest(
                **self.who(name),
                restore_id=restore_id,
                source_checkpoint_id=source,
                folder=str(self.folder(source)),
                files=files[name],
            )
            answers[name] = await self.client.restore(self.urls[name], name, request)
        return answers

    async def status(self, name: str) -> Status:
        request = StatusRequest(**self.who(name))
        return await self.client.status(self.urls[name], name, request)

    def folder(self, checkpoint_id: str) -> Path:
        return self.root / "job" / f"snapshot_{checkpoint_id}"


@asynccontextmanager
async def fleet(
    root: Path,
    generation: FakeGeneration,
    *,
    expect_restore: bool = False,
    agent: dict[str, Any] | None = None,
    agent_transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Fleet]:
    """Start the three servers and the endpoint in this loop; nothing has joined yet."""

    def agent_app(common: dict[str, Any], urls: Urls) -> FastAPI:
        given = {"model_url": urls[MODEL], "resource": {COUNTER: urls[COUNTER]}, **(agent or {})}
        return create_agent_app(AgentServerSettings(**common, **given), agent_transport)

    servers = {
        AGENT: (Kind.AGENT, agent_app),
        COUNTER: (
            Kind.RESOURCE,
            lambda common, urls: environment_app(Counter(), CounterSettings(**common)),
        ),
    }
    async with fleet_of(root, generation, servers, expect_restore=expect_restore) as made:
        yield made


Urls = Mapping[str, str]
Make = Callable[[dict[str, Any], Urls], FastAPI]


@asynccontextmanager
async def fleet_of(
    root: Path,
    generation: FakeGeneration,
    servers: Mapping[str, tuple[Kind, Make]],
    *,
    expect_restore: bool = False,
) -> AsyncIterator[Fleet]:
    """Start the policy model server, its endpoint, and these servers; nothing has joined yet.

    Args:
        root: Snapshot root.
        generation: Behind the policy model server.
        servers: By name, with what makes each from the common settings and all URLs.
        expect_restore: Whether they await one.
    """
    names = ("generation", MODEL, *servers)
    taken = {name: free_port() for name in names}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in taken.items()}

    def common(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "port": taken[name],
            "snapshot_root": root,
            "control_token": SecretStr(TOKEN),
            "expect_restore": expect_restore,
        }

    generation_url = f"{urls['generation']}/v1"
    apps = {
        "generation": generation.app(),
        MODEL: create_model_app(
            ModelServerSettings(**common(MODEL), generation_url=generation_url)
        ),
        **{name: make(common(name), urls) for name, (_, make) in servers.items()},
    }
    kinds = {MODEL: Kind.MODEL} | {name: kind for name, (kind, _) in servers.items()}
    async with contextlib.AsyncExitStack() as stack:
        by_port = {taken[name]: app for name, app in apps.items()}
        await stack.enter_async_context(serving(by_port))
        client = await stack.enter_async_context(GymClient(SecretStr(TOKEN)))
        yield Fleet(root, client, generation, {name: urls[name] for name in kinds}, kinds=kinds)
