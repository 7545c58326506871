"""The Gym servers of one incarnation, and how one call goes out to those of a kind at once.

Guarantees: calls to servers of one kind run concurrently; a call that fails in a way that passes
(transport above all) is repeated every 50 to 200 ms until its deadline and no longer; when `each`
returns or raises, none of its calls is running any more; every request carries the incarnation
and the instance that joined.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from gym.client import GymClient
from gym.protocol import (
    INNER_FILES_FOLDER,
    Counts,
    DeadlineExceeded,
    Kind,
    Role,
    Status,
    StatusRequest,
    TurnpointError,
    WrittenFile,
)
from gym.retry import retry_until
from rl.errors import ServerUnfit
from rl.messages import JoinedServer, ServerReport

T = TypeVar("T")
_LEAST_S = 0.001
STATUS_S = 2.0
"""Longest wait for one server's status in `Fleet.statuses`."""


class Ids(TypedDict):
    """The fields that every control request carries."""

    incarnation: int
    instance_id: str


@dataclass(frozen=True)
class Answered(Generic[T]):
    """One server's answer and its duration."""

    server: JoinedServer
    answer: T
    ms: float


class Fleet:
    """The servers that joined, by kind; those without control routes are never called.

    Args:
        client: For the control routes.
        servers: The answer of `discover_and_join`; it never changes within an incarnation.
        incarnation: The one they joined.
    """

    def __init__(
        self, client: GymClient, servers: Sequence[JoinedServer], incarnation: int
    ) -> None:
        self.client = client
        self.servers = list(servers)
        self.incarnation = incarnation

    @property
    def controlled(self) -> list[JoinedServer]:
        """Servers that have the control routes."""
        return [server for server in self.servers if server.instance_id is not None]

    def of(self, *kinds: Kind) -> list[JoinedServer]:
        """Controlled servers of these kinds."""
        return [server for server in self.controlled if server.kind in kinds]

    def agent(self, name: str) -> JoinedServer:
        """The agent server of this name.

        Raises:
            ServerUnfit: There is none.
        """
        for server in self.of(Kind.AGENT):
            if server.name == name:
                return server
        raise ServerUnfit("no agent server of this name has joined", participant=name)

    def policy(self) -> JoinedServer:
        """The policy model server.

        Raises:
            ServerUnfit: There is none.
        """
        for server in self.of(Kind.MODEL):
            if server.role is not Role.AUXILIARY:
                return server
        raise ServerUnfit("no policy model server has joined")

    def ids(self, server: JoinedServer) -> Ids:
        """Incarnation and instance, for a request to this server."""
        return {"incarnation": self.incarnation, "instance_id": server.instance_id or ""}

    async def status(self, server: JoinedServer, read_s: float) -> Status:
        """Status of one server, one try; an answer takes `read_s` at most."""
        request = StatusRequest(**self.ids(server))
        return await self.client.status(server.url, server.name, request, read_s=read_s)

    async def statuses(self) -> list[Status]:
        """Status of every controlled server that answers; one that does not is absent."""

        async def call(server: JoinedServer) -> Status | None:
            try:
                async with asyncio.timeout(STATUS_S):
                    return await self.status(server, STATUS_S)
            except (TurnpointError, TimeoutError):
                return None

        answers = await each(self.controlled, call)
        return [item.answer for item in answers if item.answer is not None]


async def each(
    servers: Sequence[JoinedServer],
    call: Callable[[JoinedServer], Awaitable[T]],
    deadline: float | None = None,
    *,
    retry_deadline: float | None = None,
) -> list[Answered[T]]:
    """Call every server at once and wait for all answers.

    Args:
        servers: Servers to call.
        call: One try of the call; made again if it fails in a way that passes.
        deadline: On `time.monotonic()`: no try outlives it. None bounds no try.
        retry_deadline: On `time.monotonic()`: no try begins after it; by default `deadline`. With
            neither there is one try.

    Returns:
        The answers, in the order of `servers`.

    Raises:
        DeadlineExceeded: A server gave no answer before the deadline.
        TurnpointError: The first failure that occurred; the other calls are cancelled.
    """
    until = deadline if retry_deadline is None else retry_deadline
    tasks = [asyncio.ensure_future(_answered(server, call, deadline, until)) for server in servers]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Answered)]


async def _answered(
    server: JoinedServer,
    call: Callable[[JoinedServer], Awaitable[T]],
    deadline: float | None,
    retry_deadline: float | None,
) -> Answered[T]:
    started = time.monotonic()
    try:
        async with asyncio.timeout_at(deadline):
            if retry_deadline is None:
                answer = await call(server)
            else:
                answer = await retry_until(retry_deadline, lambda: call(server))
    except TimeoutError:
        raise DeadlineExceeded(
            f"no answer in {time.monotonic() - started:.1f} s", participant=server.name
        ) from None
    return Answered(server, answer, (time.monotonic() - started) * 1000)


def own_files(server: JoinedServer) -> str:
    """Prefix of the paths of a server's own files, relative to the checkpoint folder."""
    return f"{INNER_FILES_FOLDER}/{server.name}/"


def report(
    item: Answered[Any],
    *,
    counts: Counts | None = None,
    files: Sequence[WrittenFile] = (),
    note: str | None = None,
) -> ServerReport:
    """One server's share of a phase."""
    return ServerReport(
        server=item.server.name,
        kind=item.server.kind,
        ms=item.ms,
        counts=counts or Counts(),
        bytes=sum(file.bytes for file in files),
        note=note,
    )


def server_timeout_s(deadline: float) -> float:
    """Seconds that a server gets of the time left, so that its answer arrives before the end."""
    left = deadline - time.monotonic()
    return max(left - min(0.5, left / 10), _LEAST_S)
