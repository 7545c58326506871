"""A resource server in this process whose tools wait, refuse or fail, and calls to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gym.protocol import Answer, CommitAnswer, Identity, WrittenFile
from gym.protocol.control import BASE_PATH
from gym.resource import (
    Environment,
    Refused,
    Session,
    environment_app,
    inner_identity,
    tool,
)
from gym.resource.environment import BaseEnvironment
from tests.gym.parts import JOB, checkpoint_folder, settings

ROW = {"initial_count": 3, "expected_count": 6, "responses_create_params": {"input": "add"}}


RESPONSE = {"id": "resp_1", "object": "response", "output": []}


COOKIE = "Counter___counter"


class Scripted(Environment[list[str]]):
    """Tools that wait, refuse or fail, as the tests need them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.inner: Identity | None = None

    async def seed(self, row: dict[str, Any]) -> list[str]:
        if row.get("fail"):
            raise RuntimeError("secret words of a conversation")
        return []

    @tool
    async def append(self, session: Session[list[str]], name: str = "") -> dict[str, Any]:
        self.inner = inner_identity()
        self.entered.set()
        await self.gate.wait()
        session.state.append(name)
        return {"all": list(session.state)}

    @tool
    async def refuse(self, session: Session[list[str]]) -> dict[str, Any]:
        raise Refused("not today", status=400)

    @tool
    async def fail(self, session: Session[list[str]]) -> dict[str, Any]:
        session.state.append("half")
        raise RuntimeError("secret words of a conversation")

    @tool
    async def lose(self, session: Session[list[str]]) -> dict[str, Any]:
        session.state.append("half")
        lost: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        lost.cancel()  # as a connection that is closed does with what waits for it
        return await lost

    @tool
    async def unserialisable(self, session: Session[list[str]]) -> dict[str, Any]:
        return {"bad": object()}

    async def verify(
        self, session: Session[list[str]], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        return {"reward": 1.0}

    def export_state(self, state: list[str]) -> bytes:
        return json.dumps(state).encode()

    def import_state(self, data: bytes) -> list[str]:
        return list(json.loads(data))


class Harmless(Scripted):
    errors_free_of_effect = True


class RestartOnly(Scripted):
    export_state = Environment.export_state
    import_state = Environment.import_state


class Server:
    """One resource server in this process, and calls to it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.instance_id = ""
        self.incarnation = 1

    async def control(self, operation: str, **body: Any) -> httpx.Response:
        return await self.http.post(
            f"{BASE_PATH}/{operation}",
            json={"incarnation": self.incarnation, "instance_id": self.instance_id, **body},
            headers={"authorization": "Bearer token"},
        )

    async def join(self) -> None:
        answer = await self.http.post(
            f"{BASE_PATH}/join",
            json={"job_id": JOB, "incarnation": self.incarnation},
            headers={"authorization": "Bearer token"},
        )
        self.instance_id = Answer.model_validate(answer.json()).instance_id

    async def call(
        self,
        path: str,
        body: Any,
        place: str,
        number: int = 0,
        *,
        run: int = 0,
        rollout: str = "p0_g0",
        cookies: dict[str, str] | None = None,
    ) -> httpx.Response:
        identity = Identity(incarnation=self.incarnation, rollout_id=rollout, attempt=run)
        headers = identity.mutation(place, number).headers()
        if cookies:
            headers["cookie"] = "; ".join(f"{k}={v}" for k, v in cookies.items())
        self.http.cookies.clear()
        return await self.http.post(path, json=body, headers=headers)

    async def seed(self, row: Any = ROW, **which: Any) -> httpx.Response:
        return await self.call("/seed_session", row, "seed", **which)

    async def prepare(self, ckpt: str = "ck") -> None:
        answer = await self.control("prepare", checkpoint_id=ckpt, budget_s=2, lease_s=30)
        assert answer.json()["ready"], answer.text

    async def commit(self, folder: Path, ckpt: str = "ck") -> CommitAnswer:
        answer = await self.control("commit", checkpoint_id=ckpt, budget_s=5, folder=str(folder))
        assert answer.status_code == 200, answer.text
        return CommitAnswer.model_validate(answer.json())

    async def restore(self, folder: Path, files: list[WrittenFile]) -> httpx.Response:
        return await self.control(
            "restore",
            restore_id="rs",
            source_checkpoint_id="ck",
            folder=str(folder),
            files=[file.model_dump() for file in files],
        )


@asynccontextmanager
async def served(
    environment: BaseEnvironment[Any],
    root: Path,
    *,
    expect_restore: bool = False,
    name: str = "counter",
    incarnation: int = 1,
) -> AsyncIterator[Server]:
    app = environment_app(environment, settings(root, name=name, expect_restore=expect_restore))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        server = Server(http)
        server.incarnation = incarnation
        await server.join()
        yield server


def revision(answer: httpx.Response) -> int:
    return int(answer.headers["x-turnpoint-resource-revision"])


async def saved(environment: Environment[Any], root: Path) -> tuple[Path, CommitAnswer, str]:
    """A snapshot of two sessions; also the cookie of the first."""
    async with served(environment, root) as server:
        seeded = await server.seed()
        cookie = seeded.cookies[f"{type(environment).__name__}___counter"]
        await server.call("/append", {"name": "a"}, "call-0")
        await server.call("/refuse", {}, "call-0", 1)
        await server.seed(rollout="p1_g0")
        await server.prepare()
        folder = checkpoint_folder(root)
        return folder, await server.commit(folder), cookie
