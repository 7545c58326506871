"""HTTP client of the control routes, and of `/run` and the ledger manifest.

Guarantees: every failure is a `TurnpointError`: a typed refusal, `ServerUnreachable` (no answer,
or that of a gateway in the server's place) or `ServerFault` (any other answer that is not of this
protocol); a foreign body is never quoted. An answer of another server name is an `OtherServer`.
Nothing is repeated here: see `gym.retry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from gym.http import CONNECT_S, gateway_error, http_client, json_or_none, send
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
    Status,
    StatusRequest,
    TurnpointError,
    error_from_body,
)
from gym.protocol.control import BASE_PATH

M = TypeVar("M", bound=BaseModel)
A = TypeVar("A", bound=Answer)

CALL_S = 10.0
"""Read timeout of control calls that carry no budget; servers answer those at once."""
BUDGET_MARGIN_S = 5.0
"""Seconds after its budget in which an answer may still come before the server counts as silent."""
RESTORE_READ_S = 600.0
"""Read timeout of `join`, `restore` and `reset`: digests and parsing of a whole part, no budget."""


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
        connect_s: float = CONNECT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._authorization = {"authorization": f"Bearer {token.get_secret_value()}"}
        self._connect_s = connect_s
        self._http = http_client(transport, connect_s=connect_s)

    async def aclose(self) -> None:
        """Close all connections; repeatable."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def capabilities(self, url: str, name: str) -> Capabilities:
        """Ask what a server is. A server without the routes is a `ServerFault` with `http: 404`."""
        body = await self._call("GET", url, name, f"{BASE_PATH}/capabilities", CALL_S)
        return _of_server(_parsed(Capabilities, body, name), name)

    async def status(
        self, url: str, name: str, request: StatusRequest, *, read_s: float = CALL_S
    ) -> Status:
        """Ask for a server's phase, lease, counts and blockers."""
        # A `ControlRequest` is a `StatusRequest` too, and its schema version is no query field.
        query = {"incarnation": request.incarnation, "instance_id": request.instance_id}
        body = await self._call("GET", url, name, f"{BASE_PATH}/status", read_s, params=query)
        return _of_server(_parsed(Status, body, name), name)

    async def join(self, url: str, name: str, request: JoinRequest) -> Answer:
        """Make a server part of a job's incarnation."""
        return await self._post(url, name, "join", request, Answer, RESTORE_READ_S)

    async def prepare(self, url: str, name: str, request: PrepareRequest) -> PrepareAnswer:
        """Close a server and wait, `budget_s` at most, for turn boundaries."""
        read_s = request.budget_s + BUDGET_MARGIN_S
        return await self._post(url, name, "prepare", request, PrepareAnswer, read_s)

    async def renew(self, url: str, name: str, request: RenewRequest) -> RenewAnswer:
        """Extend a server's lease."""
        return await self._post(url, name, "renew", request, RenewAnswer)

    async def commit(self, url: str, name: str, request: CommitRequest) -> CommitAnswer:
        """Have a server write its part, within `budget_s`."""
        read_s = request.budget_s + BUDGET_MARGIN_S
        return await self._post(url, name, "commit", request, CommitAnswer, read_s)

    async def resume(self, url: str, name: str, request: ResumeRequest) -> ResumeAnswer:
        """Open a server again; also the abort."""
        return await self._post(url, name, "resume", request, ResumeAnswer)

    async def restore(self, url: str, name: str, request: RestoreRequest) -> RestoreAnswer:
        """Have a server load its part."""
        return await self._post(url, name, "restore", request, RestoreAnswer, RESTORE_READ_S)

    async def reset(self, url: str, name: str, request: ResetRequest) -> Answer:
        """Drop everything restored on a server."""
        return await self._post(url, name, "reset", request, Answer, RESTORE_READ_S)

    async def discard(self, url: str, name: str, request: DiscardRequest) -> Answer:
        """Drop what was restored of some rollouts."""
        return await self._post(url, name, "discard", request, Answer)

    async def acknowledge(self, url: str, name: str, request: AcknowledgeRequest) -> Answer:
        """Tell an agent that RL owns a result."""
        return await self._post(url, name, "acknowledge", request, Answer)

    async def forget(self, url: str, name: str, request: ForgetRequest) -> Answer:
        """Have a server drop what it keeps of finished rollouts."""
        return await self._post(url, name, "forget", request, Answer)

    async def run(
        self, url: str, name: str, identity: Identity, row: Mapping[str, Any]
    ) -> tuple[bytes, httpx.Headers]:
        """Run a rollout to its end, or join the run that is under way.

        Waits for the answer as long as the connection lives.

        Returns:
            The verify answer as the agent wrote it (its digest is of these bytes), and the
            answer's headers.
        """
        answer = await self._send(
            "POST", url, name, "/run", None, json=row, headers=identity.headers()
        )
        return answer.content, answer.headers

    async def manifest(self, url: str, name: str, capture_key: str) -> Manifest:
        """The ledger of the rollout whose run has this capture key, oldest call first."""
        path = f"/training-token-capture/control/rollouts/{quote(capture_key, safe='')}/manifest"
        body = await self._call("GET", url, name, path, CALL_S)
        return _parsed(Manifest, body, name)

    async def _post(
        self,
        url: str,
        name: str,
        operation: str,
        request: BaseModel,
        answer: type[A],
        read_s: float = CALL_S,
    ) -> A:
        sent = request.model_dump(mode="json")
        body = await self._call("POST", url, name, f"{BASE_PATH}/{operation}", read_s, json=sent)
        return _of_server(_parsed(answer, body, name), name)

    async def _call(
        self, method: str, url: str, name: str, path: str, read_s: float | None, **options: Any
    ) -> Any:
        """Send one request; answers the JSON of its answer."""
        answer = await self._send(method, url, name, path, read_s, **options)
        body = json_or_none(answer)
        if body is None:
            raise _failure(answer, body, name)
        return body

    async def _send(
        self, method: str, url: str, name: str, path: str, read_s: float | None, **options: Any
    ) -> httpx.Response:
        """Send one request, with the bearer token unless other headers are given.

        Raises:
            TurnpointError: The answer is not a success.
        """
        answer = await send(
            self._http,
            method,
            url.rstrip("/") + path,
            participant=name,
            timeout=httpx.Timeout(read_s, connect=self._connect_s),
            **{"headers": self._authorization, **options},
        )
        if not answer.is_success:
            raise _failure(answer, json_or_none(answer), name)
        return answer


def _failure(answer: httpx.Response, body: object, name: str) -> TurnpointError:
    failure = error_from_body(answer.status_code, body, participant=name)
    if not isinstance(failure, ServerFault):
        return failure
    failure.details["http"] = answer.status_code
    gateway = gateway_error(answer.status_code, body, server_field="code", participant=name)
    return gateway or failure


def _parsed(kind: type[M], body: object, name: str) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fields = sorted({".".join(str(p) for p in item["loc"]) for item in error.errors()})
        raise ServerFault(
            f"the answer is no {kind.__name__}: {', '.join(fields)}", participant=name
        ) from None


def _of_server(answer: A, name: str) -> A:
    """The answer, if the server of this name gave it."""
    if answer.server != name:
        raise OtherServer(
            f"the server at {name}'s URL is called {answer.server}: correct `servers`, or the "
            "--name it is started with",
            participant=name,
            details={"answered": answer.server},
        )
    return answer
