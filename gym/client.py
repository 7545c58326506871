"""HTTP client of the control routes, and of `/run` and the ledger manifest.

Guarantees: every failure is a `TurnpointError`: a typed refusal, `ServerUnreachable` (nothing
answered, or a gateway in its place) or `ServerFault` (something else did); a foreign body is
never quoted. An answer of another server name is an `OtherServer`. Nothing is retried here except
by `retry_until`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from gym.protocol import (
    AcknowledgeRequest,
    Answer,
    Capabilities,
    CommitAnswer,
    CommitRequest,
    DiscardRequest,
    ForgetRequest,
    Identity,
    JoinRequest,
    Manifest,
    OtherServer,
    PrepareAnswer,
    PrepareRequest,
    RenewAnswer,
    RenewRequest,
    ResetRequest,
    RestoreAnswer,
    RestoreRequest,
    ResumeAnswer,
    ResumeRequest,
    ServerFault,
    ServerUnreachable,
    Status,
    StatusRequest,
    TurnpointError,
    error_from_body,
)
from gym.protocol.control import BASE_PATH

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

CALL_S = 10.0
"""Read timeout of control calls that carry no budget; servers answer those at once."""
BUDGET_MARGIN_S = 5.0
"""How long after its budget an answer may still come before the server counts as silent."""
RESTORE_READ_S = 600.0
"""Read timeout of `restore` and `reset`: digests and parsing of a whole part, no budget."""
_GATEWAY = (502, 503, 504)
"""Untyped, they come from something in between: as for an agent's calls (`gym.agent.peer`)."""


class GymClient:
    """One per process; closes with `aclose` or as an async context manager.

    Args:
        token: Bearer token of the control routes.
        connect_s: Seconds for a connection to be accepted.
        transport: Another transport than HTTP, for tests.
    """

    def __init__(
        self,
        token: SecretStr,
        *,
        connect_s: float = 2,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Open nothing yet."""
        self._authorization = {"authorization": f"Bearer {token.get_secret_value()}"}
        self._connect_s = connect_s
        # Thousands of `/run` calls are open at once; a pool limit would queue control calls
        # behind them. Environment proxies are not for servers of the job.
        self._http = httpx.AsyncClient(
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections; repeatable."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self.aclose()

    async def capabilities(self, url: str, name: str) -> Capabilities:
        """Ask what a server is. A server without the routes is a `ServerFault` with `http: 404`."""
        return await self._control("GET", url, name, "capabilities", None, Capabilities)

    async def join(self, url: str, name: str, request: JoinRequest) -> Answer:
        """Make a server part of a job's incarnation."""
        return await self._control(
            "POST", url, name, "join", request, Answer, read_s=RESTORE_READ_S
        )

    async def status(
        self, url: str, name: str, request: StatusRequest, *, read_s: float = CALL_S
    ) -> Status:
        """Ask where a server stands."""
        # A `ControlRequest` is a `StatusRequest` too, and its schema version is no query field.
        query = StatusRequest(incarnation=request.incarnation, instance_id=request.instance_id)
        return await self._control("GET", url, name, "status", query, Status, read_s=read_s)

    async def prepare(self, url: str, name: str, request: PrepareRequest) -> PrepareAnswer:
        """Close a server and wait, `budget_s` at most, for turn boundaries."""
        return await self._control(
            "POST", url, name, "prepare", request, PrepareAnswer, read_s=_over(request.budget_s)
        )

    async def renew(
        self, url: str, name: str, request: RenewRequest, *, read_s: float = CALL_S
    ) -> RenewAnswer:
        """Extend a server's lease."""
        return await self._control("POST", url, name, "renew", request, RenewAnswer, read_s=read_s)

    async def commit(self, url: str, name: str, request: CommitRequest) -> CommitAnswer:
        """Have a server write its part."""
        return await self._control(
            "POST", url, name, "commit", request, CommitAnswer, read_s=_over(request.budget_s)
        )

    async def resume(
        self, url: str, name: str, request: ResumeRequest, *, read_s: float = CALL_S
    ) -> ResumeAnswer:
        """Open a server again; also the abort."""
        return await self._control(
            "POST", url, name, "resume", request, ResumeAnswer, read_s=read_s
        )

    async def restore(self, url: str, name: str, request: RestoreRequest) -> RestoreAnswer:
        """Have a server load its part."""
        return await self._control(
            "POST", url, name, "restore", request, RestoreAnswer, read_s=RESTORE_READ_S
        )

    async def reset(self, url: str, name: str, request: ResetRequest) -> Answer:
        """Drop everything restored on a server."""
        return await self._control(
            "POST", url, name, "reset", request, Answer, read_s=RESTORE_READ_S
        )

    async def discard(self, url: str, name: str, request: DiscardRequest) -> Answer:
        """Drop what was restored of some rollouts."""
        return await self._control("POST", url, name, "discard", request, Answer)

    async def acknowledge(self, url: str, name: str, request: AcknowledgeRequest) -> Answer:
        """Tell an agent that a result is RL's own."""
        return await self._control("POST", url, name, "acknowledge", request, Answer)

    async def forget(self, url: str, name: str, request: ForgetRequest) -> Answer:
        """Have a server drop what it keeps of finished rollouts."""
        return await self._control("POST", url, name, "forget", request, Answer)

    async def run(
        self, url: str, name: str, identity: Identity, row: Mapping[str, Any]
    ) -> tuple[dict[str, Any], httpx.Headers]:
        """Run a rollout to its end, or join the run that is under way.

        Waits for the answer as long as the connection lives.

        Returns:
            The verify answer, and the answer's headers.
        """
        body, headers = await self._call(
            "POST", url, name, "/run", json=row, headers=identity.headers(), read_s=None
        )
        if not isinstance(body, dict):
            raise ServerFault("/run answered something else than an object", participant=name)
        return body, headers

    async def manifest(self, url: str, name: str, capture_key: str) -> Manifest:
        """The ledger of the rollout whose run has this capture key, oldest call first."""
        path = f"/training-token-capture/control/rollouts/{quote(capture_key, safe='')}/manifest"
        body, _ = await self._call("GET", url, name, path, headers=self._authorization)
        return _parsed(Manifest, body, name)

    async def _control(
        self,
        method: str,
        url: str,
        name: str,
        operation: str,
        request: BaseModel | None,
        answer: type[M],
        *,
        read_s: float | None = CALL_S,
    ) -> M:
        sent = request.model_dump(mode="json") if request is not None else None
        body, _ = await self._call(
            method,
            url,
            name,
            f"{BASE_PATH}/{operation}",
            json=sent if method == "POST" else None,
            query=sent if method == "GET" else None,
            headers=self._authorization,
            read_s=read_s,
        )
        parsed = _parsed(answer, body, name)
        if (answered := getattr(parsed, "server", name)) != name:
            raise OtherServer(
                f"the server at {name}'s URL is called {answered}: correct `servers`, or the "
                "--name it is started with",
                participant=name,
                details={"answered": answered},
            )
        return parsed

    async def _call(
        self,
        method: str,
        url: str,
        name: str,
        path: str,
        *,
        json: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str],
        read_s: float | None = CALL_S,
    ) -> tuple[Any, httpx.Headers]:
        try:
            answer = await self._http.request(
                method,
                url.rstrip("/") + path,
                json=json,
                params=query,
                headers=dict(headers),
                timeout=httpx.Timeout(read_s, connect=self._connect_s),
            )
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"no answer ({type(error).__name__})",
                participant=name,
                details={"path": path.partition("?")[0]},
            ) from None
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and body is not None:
            return body, answer.headers
        failure = error_from_body(answer.status_code, body, participant=name)
        if isinstance(failure, ServerFault):
            if answer.status_code in _GATEWAY and not (isinstance(body, dict) and "code" in body):
                raise ServerUnreachable(
                    f"no answer (HTTP {answer.status_code} of something in between)",
                    participant=name,
                    details={"path": path.partition("?")[0]},
                )
            failure.details["http"] = answer.status_code
        raise failure


async def retry_until(
    deadline_monotonic: float,
    call: Callable[[], Awaitable[T]],
    *,
    first_s: float = 0.05,
    most_s: float = 0.2,
) -> T:
    """Repeat `call` while it fails in a way that passes, until the deadline.

    Args:
        deadline_monotonic: On the event loop's clock (`asyncio.get_running_loop().time()`,
            which is `time.monotonic()`).
        call: To be repeated after a `TurnpointError` with `retryable`.
        first_s: First wait, in seconds; doubled each time.
        most_s: Longest wait, in seconds.

    Raises:
        TurnpointError: The last one, at once if it is not retryable, else when the next try
            would come after the deadline.
    """
    wait_s = first_s
    while True:
        try:
            return await call()
        except TurnpointError as error:
            left = deadline_monotonic - asyncio.get_running_loop().time()
            if not error.retryable or left <= wait_s:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, most_s)


def _over(budget_s: float) -> float:
    return budget_s + BUDGET_MARGIN_S


def _parsed(kind: type[M], body: object, name: str) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fields = sorted({".".join(str(p) for p in item["loc"]) for item in error.errors()})
        raise ServerFault(
            f"the answer is no {kind.__name__}: {', '.join(fields)}", participant=name
        ) from None
