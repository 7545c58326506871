"""Small Gym servers in this process: they record what is asked and answer what a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from gym.protocol import Kind, Phase, Role, TurnpointError, Wire
from rl.messages import JoinedServer
from tests.ports import free_port

Script = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | JSONResponse | Wire]]


@dataclass
class Asked:
    """One call as a server saw it."""

    server: str
    operation: str
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class FakeServer:
    """One server; `scripts[operation]` answers instead of the default."""

    name: str
    kind: Kind
    journal: list[Asked]
    role: Role | None = None
    instance_id: str = ""
    phase: Phase = Phase.OPEN
    holder: str | None = None
    in_flight: int = 0
    parked: int = 0
    scripts: dict[str, Script] = field(default_factory=dict)
    url: str = ""
    port: int = 0
    _server: uvicorn.Server | None = None
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.instance_id = self.instance_id or f"{self.name}-life-1"

    def joined(self) -> JoinedServer:
        return JoinedServer(
            name=self.name,
            kind=self.kind,
            mode="export_restore",
            role=self.role,
            url=self.url,
            instance_id=self.instance_id,
        )

    def fail(self, operation: str, *errors: TurnpointError | None) -> None:
        """Answer the next calls of `operation` with these errors (None: the default), then on."""
        left = list(errors)

        async def script(body: dict[str, Any]) -> dict[str, Any] | JSONResponse:
            error = left.pop(0) if left else None
            if error is not None:
                return JSONResponse(error.body(), status_code=error.status)
            return self.default(operation, body)

        self.scripts[operation] = script

    def hang(self, operation: str, seconds: float = 30.0) -> None:
        async def script(body: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(seconds)
            return self.default(operation, body)

        self.scripts[operation] = script

    def who(self) -> dict[str, Any]:
        return {
            "server": self.name,
            "instance_id": self.instance_id,
            "incarnation": 1,
            "phase": self.phase.value,
        }

    def default(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        counts = {"parked": self.parked, "in_flight": self.in_flight}
        blockers = {"blockers": [], "blocker_count": 0}
        match operation:
            case "capabilities":
                return {
                    **self.who(),
                    "kind": self.kind.value,
                    "mode": "export_restore",
                    "role": self.role and self.role.value,
                }
            case "status":
                return {
                    **self.who(),
                    "checkpoint_id": self.holder,
                    "lease_left_s": 5.0 if self.holder else None,
                    "counts": counts,
                    **blockers,
                }
            case "prepare":
                self.holder, self.phase = body["checkpoint_id"], Phase.PREPARED
                return {**self.who(), "ready": True, "counts": counts, **blockers}
            case "renew":
                return {
                    **self.who(),
                    "held": self.holder == body["checkpoint_id"],
                    "lease_left_s": None,
                }
            case "commit":
                self.phase = Phase.COMMITTED
                return {**self.who(), "files": [], "counts": counts}
            case "resume":
                if self.holder in (None, body["checkpoint_id"]):
                    self.holder, self.phase = None, Phase.OPEN
                return {**self.who(), "checkpoint_id": self.holder}
            case "restore":
                self.phase = Phase.RESTORED
                return {**self.who(), "counts": counts}
            case _:
                return self.who()

    async def start(self) -> None:
        """Listen, after a stop on the same port again."""
        app = FastAPI()

        @app.api_route("/{path:path}", methods=["GET", "POST"], response_model=None)
        async def answer(path: str, request: Request) -> Any:
            operation = path.removeprefix("checkpoint/v1/")
            body = await request.json() if request.method == "POST" else dict(request.query_params)
            self.journal.append(Asked(self.name, operation, body, dict(request.headers)))
            if operation in self.scripts:
                scripted = await self.scripts[operation](body)
                return scripted.model_dump(mode="json") if isinstance(scripted, Wire) else scripted
            return self.default(operation, body)

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = self.port or free_port()
        listener.bind(("127.0.0.1", self.port))
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        # A handler that stays behind would swallow the interrupts that other tests send.
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End as a killed process does: connections are reset under their calls."""
        if self._server is not None and self._task is not None:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            self._server.should_exit = self._server.force_exit = True
            await self._task
            self._server = None


class FakeFleet:
    """Two policy-side models, two agents, two resources; one journal."""

    def __init__(self) -> None:
        self.journal: list[Asked] = []
        kinds = {
            "policy_model": (Kind.MODEL, Role.POLICY),
            "judge": (Kind.MODEL, Role.AUXILIARY),
            "agent_a": (Kind.AGENT, None),
            "agent_b": (Kind.AGENT, None),
            "counter": (Kind.RESOURCE, None),
            "tools": (Kind.RESOURCE, None),
        }
        self.servers = {
            name: FakeServer(name, kind, self.journal, role) for name, (kind, role) in kinds.items()
        }

    def __getitem__(self, name: str) -> FakeServer:
        return self.servers[name]

    def joined(self) -> list[JoinedServer]:
        return [server.joined() for server in self.servers.values()]

    def asked(self, operation: str) -> list[str]:
        """Names of the servers that were asked this, in order."""
        return [asked.server for asked in self.journal if asked.operation == operation]

    def kinds(self, operation: str) -> list[Kind]:
        """Kinds that were asked this, in order, each run of the same kind once."""
        kinds = [self.servers[name].kind for name in self.asked(operation)]
        return [kind for kind, _ in itertools.groupby(kinds)]

    def bodies(self, operation: str, server: str) -> list[dict[str, Any]]:
        return [
            asked.body
            for asked in self.journal
            if asked.operation == operation and asked.server == server
        ]

    def hold(self, checkpoint_id: str, phase: Phase = Phase.COMMITTED) -> None:
        for server in self.servers.values():
            server.holder, server.phase = checkpoint_id, phase


@asynccontextmanager
async def fake_fleet() -> AsyncIterator[FakeFleet]:
    fleet = FakeFleet()
    await asyncio.gather(*(server.start() for server in fleet.servers.values()))
    try:
        yield fleet
    finally:
        await asyncio.gather(*(server.stop() for server in fleet.servers.values()))


def lease_left() -> float:
    """A save whose lease never ends: five more seconds."""
    return 5.0
