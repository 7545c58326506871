"""The routes below `/checkpoint/v1`, and how every error of a server is answered.

Guarantees: each control route asks for the bearer token before it reads a body, compared in
constant time; without a configured token the routes are not installed at all. Control routes
are never behind the admission gate. A refusal is `{"code", "message", "details"}`; a request
that does not parse names its fields and hides their values; an unexpected exception is
answered and logged by its type alone; a call that ends with its process is never answered.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym.checkpoint.participant import Participant
from gym.logs import log_fault
from gym.protocol import (
    AcknowledgeRequest,
    Answer,
    Capabilities,
    CheckpointParked,
    CommitAnswer,
    CommitRequest,
    DiscardRequest,
    ForgetRequest,
    InvalidRequest,
    JoinRequest,
    Kind,
    PrepareAnswer,
    PrepareRequest,
    RenewAnswer,
    RenewRequest,
    ResetRequest,
    RestoreAnswer,
    RestoreRequest,
    ResumeAnswer,
    ResumeRequest,
    Status,
    StatusRequest,
    TurnpointError,
    Unauthorized,
)
from gym.protocol.control import BASE_PATH
from gym.server.one_process import only_process

log = logging.getLogger("turnpoint.gym")
T = TypeVar("T")

RETRY_AFTER_S = 1
"""HTTP's `retry-after` counts whole seconds; an agent that opens earlier comes back at once."""


def create_app(participant: Participant, *, guarded: Sequence[str] = ()) -> FastAPI:
    """An application with the control routes, `/health`, and typed errors.

    Args:
        participant: The state machine behind the routes.
        guarded: Further path prefixes that ask for the bearer token.

    Raises:
        ValueError: No control token is configured.

    Its start raises `MoreThanOneProcess` if another process serves the same server.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with only_process(participant.settings):
            yield
            participant.shut_down()

    app = FastAPI(title=participant.name, lifespan=lifespan, openapi_url=None)
    app.add_exception_handler(TurnpointError, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    install_control_routes(app, participant, guarded=guarded)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def install_control_routes(
    app: FastAPI, participant: Participant, *, guarded: Sequence[str] = ()
) -> None:
    """Install every row of the design's route table, behind the bearer token.

    Raises:
        ValueError: No control token is configured.
    """
    token = participant.settings.token()
    if token is None:
        raise ValueError("no control token is configured: set control_token_file")
    router = APIRouter(prefix=BASE_PATH)

    async def logged(
        operation: str,
        identifier: str | None,
        work: Callable[[], T | Awaitable[T]],
        **ids: object,
    ) -> T:
        return await _logged(participant, operation, identifier, work, ids)

    @router.get("/capabilities")
    async def capabilities() -> Capabilities:
        return participant.capabilities()

    @router.get("/status")
    async def status(request: Annotated[StatusRequest, Query()]) -> Status:
        return participant.status(request)

    @router.post("/join")
    async def join(request: JoinRequest) -> Answer:
        return await logged("join", None, lambda: participant.join(request))

    @router.post("/prepare")
    async def prepare(request: PrepareRequest) -> PrepareAnswer:
        return await logged("prepare", request.checkpoint_id, lambda: participant.prepare(request))

    @router.post("/renew")
    async def renew(request: RenewRequest) -> RenewAnswer:
        return await logged("renew", request.checkpoint_id, lambda: participant.renew(request))

    @router.post("/commit")
    async def commit(request: CommitRequest) -> CommitAnswer:
        return await logged("commit", request.checkpoint_id, lambda: participant.commit(request))

    @router.post("/resume")
    async def resume(request: ResumeRequest) -> ResumeAnswer:
        return await logged("resume", request.checkpoint_id, lambda: participant.resume(request))

    @router.post("/restore")
    async def restore(request: RestoreRequest) -> RestoreAnswer:
        return await logged("restore", request.restore_id, lambda: participant.restore(request))

    @router.post("/reset")
    async def reset(request: ResetRequest) -> Answer:
        return await logged("reset", request.restore_id, lambda: participant.reset(request))

    @router.post("/discard")
    async def discard(request: DiscardRequest) -> Answer:
        return await logged("discard", request.restore_id, lambda: participant.discard(request))

    @router.post("/forget")
    async def forget(request: ForgetRequest) -> Answer:
        return await logged("forget", None, lambda: participant.forget(request))

    if participant.part.kind is Kind.AGENT:

        @router.post("/acknowledge")
        async def acknowledge(request: AcknowledgeRequest) -> Answer:
            return await logged(
                "acknowledge",
                None,
                lambda: participant.acknowledge(request),
                rollout_id=request.rollout_id,
                attempt=request.attempt_index,
            )

    app.include_router(router)
    app.add_middleware(BearerGuard, token=token, prefixes=(BASE_PATH, *guarded))
    app.add_middleware(FaultAnswers)


async def _logged(
    participant: Participant,
    operation: str,
    identifier: str | None,
    work: Callable[[], T | Awaitable[T]],
    ids: Mapping[str, object],
) -> T:
    """Run one control operation between two log lines; the end names a refusal's code."""
    began = time.monotonic()

    def say(state: str, outcome: str | None = None) -> None:
        log.info(
            "control",
            extra={
                "event": "control",
                "operation": operation,
                "checkpoint_id": identifier,
                "state": state,
                "phase": participant.phase.value,
                "ms": round((time.monotonic() - began) * 1000, 3),
                "outcome": outcome,
                **ids,
            },
        )

    say("begin")
    try:
        begun = work()
        answer = await begun if isinstance(begun, Awaitable) else begun
    except TurnpointError as error:
        say("end", error.code)
        raise
    except BaseException as error:
        say("end", type(error).__name__)
        raise
    say("end", "ok")
    return answer


class BearerGuard:
    """Answers 401 to calls below some path prefixes that do not carry the bearer token."""

    def __init__(self, app: ASGIApp, *, token: SecretStr, prefixes: Sequence[str]) -> None:
        """Wrap `app`."""
        self._app = app
        self._expected = b"Bearer " + token.get_secret_value().encode()
        self._prefixes = tuple(prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a call through, or refuse it before its body is read."""
        if scope["type"] == "http" and scope["path"].startswith(self._prefixes):
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                answer = error_response(Unauthorized("the bearer token is missing or another one"))
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


class FaultAnswers:
    """Answers an unexpected exception with a 500 that tells nothing, and logs its type.

    A call that is cancelled, because the process is being stopped, is a lost connection to its
    caller. uvicorn would answer it with a 500: an agent would show that to the model as the
    tool's output, and RL would count the run as failed.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, and catch what nothing else caught."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] == "http" and not started:
                # An answer begun and not ended: uvicorn closes the connection.
                headers = [(b"content-length", b"1")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
            raise
        except Exception as error:
            if scope["type"] != "http":
                raise
            log_fault(error, scope["path"])
            if not started:
                await error_response(TurnpointError("an unexpected error; see the server's log"))(
                    scope, receive, send
                )


def error_response(error: TurnpointError) -> JSONResponse:
    """The answer that carries a typed error."""
    headers = {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, CheckpointParked) else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def invalid_request(errors: Sequence[dict[str, object]]) -> InvalidRequest:
    """The error for a request that does not parse: fields and reasons, no values.

    Args:
        errors: pydantic's list of errors.
    """
    fields = sorted(
        {".".join(str(part) for part in _parts(item.get("loc"))) or "body" for item in errors}
    )
    return InvalidRequest(f"does not parse: {', '.join(fields)}", details={"fields": fields})


def _parts(loc: object) -> list[object]:
    parts = list(loc) if isinstance(loc, (tuple, list)) else []
    return parts[1:] if parts[:1] in (["body"], ["query"]) else parts


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TurnpointError)
    return error_response(error)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_request(error.errors()))


async def _nobody_there(_: Request, __: Exception) -> Response:
    # nginx's status for a caller that has left; nobody reads it.
    return Response(status_code=499)
