"""Answers for errors, the same on every route of a Gym server.

Guarantees: a refusal is `{"code", "message", "details"}`; a request that does not parse names its
fields and hides their values; an unexpected exception is answered and logged by its type alone; a
call that ends with its process is never answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym.logs import log_fault
from gym.protocol import CheckpointParked, InvalidRequest, TurnpointError

RETRY_AFTER_S = 1
"""HTTP's `retry-after` counts whole seconds; an agent that opens earlier comes back at once."""


def install_error_answers(app: FastAPI) -> None:
    """Answer every error of `app` as this module says."""
    app.add_exception_handler(TurnpointError, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _caller_gone)
    app.add_middleware(FaultAnswers)


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


class FaultAnswers:
    """Answers an unexpected exception with a 500 that tells nothing, and logs its type.

    A call that is cancelled, because the process is being stopped, is a lost connection to its
    caller. uvicorn would answer it with a 500: an agent would show that to the model as the
    tool's output, and RL would count the run as failed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, and catch what no exception handler caught."""
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


def _parts(loc: object) -> list[object]:
    parts = list(loc) if isinstance(loc, (tuple, list)) else []
    return parts[1:] if parts[:1] in (["body"], ["query"]) else parts


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TurnpointError)
    return error_response(error)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_request(error.errors()))


async def _caller_gone(_: Request, __: Exception) -> Response:
    # nginx's status for a caller that has left: it reaches no caller.
    return Response(status_code=499)
