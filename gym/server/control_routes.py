"""The routes below `/checkpoint/v1` (design section 6, the control protocol).

Guarantees: each control route asks for the bearer token before it reads a body, compared in
constant time; without a configured token the routes are not installed at all. Control routes
are never behind the admission gate. Each call stands in the log with its beginning and its end.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, FastAPI, Query
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gym.checkpoint.participant import Participant
from gym.checkpoint.phases import Phases
from gym.protocol import (
    Answer,
    Capabilities,
    Kind,
    Status,
    StatusRequest,
    TurnpointError,
    Unauthorized,
)
from gym.protocol.control import BASE_PATH
from gym.server.answers import error_response

log = logging.getLogger("turnpoint.gym")

Work = Callable[[Any], Answer | Awaitable[Answer]]


def install_control_routes(
    app: FastAPI,
    participant: Participant,
    token: SecretStr | None,
    *,
    guarded: Sequence[str] = (),
) -> None:
    """Install every row of the design's route table, behind the bearer token.

    Args:
        app: The application.
        participant: Serves the routes.
        token: The bearer token.
        guarded: Further path prefixes that ask for the token.

    Raises:
        ValueError: No control token is configured.
    """
    if token is None:
        raise ValueError("no control token is configured: set control_token_file")
    router = APIRouter(prefix=BASE_PATH)

    @router.get("/capabilities")
    async def capabilities() -> Capabilities:
        return participant.capabilities()

    @router.get("/status")
    async def status(request: Annotated[StatusRequest, Query()]) -> Status:
        return participant.status(request)

    posts: dict[str, Work] = {
        "join": participant.join,
        "prepare": participant.save.prepare,
        "renew": participant.save.renew,
        "commit": participant.save.commit,
        "resume": participant.save.resume,
        "restore": participant.restore.load,
        "reset": participant.restore.reset,
        "discard": participant.restore.discard,
        "forget": participant.forget,
    }
    if participant.part.kind is Kind.AGENT:
        posts["acknowledge"] = participant.acknowledge
    for operation, work in posts.items():
        endpoint = _logged(participant.phases, operation, work)
        router.add_api_route(f"/{operation}", endpoint, methods=["POST"])

    app.include_router(router)
    app.add_middleware(BearerGuard, token=token, prefixes=(BASE_PATH, *guarded))


def _logged(phases: Phases, operation: str, work: Work) -> Callable[[Any], Awaitable[Answer]]:
    """`work` between two log lines; the second names a refusal's code."""

    async def endpoint(request: Any) -> Answer:
        began = time.monotonic()
        operation_id = getattr(request, "checkpoint_id", getattr(request, "restore_id", None))
        ids = {"operation": operation, "checkpoint_id": operation_id}
        if operation == "acknowledge":
            ids |= {"rollout_id": request.rollout_id, "attempt": request.attempt_index}

        def log_state(state: str, outcome: str | None = None) -> None:
            ms = round((time.monotonic() - began) * 1000, 3)
            extra = {"event": "control", "state": state, "ms": ms, "outcome": outcome}
            log.info("control", extra=extra | ids | {"phase": phases.phase.value})

        log_state("begin")
        try:
            begun = work(request)
            answer = await begun if isinstance(begun, Awaitable) else begun
        except BaseException as error:
            log_state(
                "end", error.code if isinstance(error, TurnpointError) else type(error).__name__
            )
            raise
        log_state("end", "ok")
        return answer

    endpoint.__annotations__ = get_type_hints(work)  # FastAPI reads the models from here
    return endpoint


class BearerGuard:
    """Answers 401 to calls below some path prefixes that do not carry the bearer token."""

    def __init__(self, app: ASGIApp, *, token: SecretStr, prefixes: Sequence[str]) -> None:
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
