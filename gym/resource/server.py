"""The HTTP server around an environment.

Routes and shapes are NeMo Gym's: `/seed_session`, `/<tool>`, `/verify` (or `/reset` and `/step`),
session cookies, rows with `responses_create_params`. Guarantees: those of `gym.resource.session`
and `gym.resource.part`. Calls without identity headers have sessions of their own
(`gym.resource.anonymous_sessions`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar, overload

from fastapi import FastAPI, Request, Response
from starlette.middleware.sessions import SessionMiddleware

from gym.checkpoint.phases import Phases
from gym.protocol import (
    HEADER_RESOURCE_REVISION,
    CallKind,
    Identity,
    IdentityMismatch,
    InvalidRequest,
    Mode,
    digest_of,
    request_id,
)
from gym.resource.environment import BaseEnvironment, Route, inner_caller
from gym.resource.part import ResourcePart
from gym.resource.session import Mutation
from gym.server.anonymous_calls import caller_of
from gym.server.app import close_with, create_app
from gym.server.serve import serve_configured
from gym.server.settings import ServerSettings

K = TypeVar("K", bound=ServerSettings)
SESSION_ID_KEY = "session_id"
"""Key in the cookie, as NeMo Gym has it."""


@overload
def serve_environment(environment: Callable[[], BaseEnvironment[Any]]) -> None: ...


@overload
def serve_environment(
    environment: Callable[[K], BaseEnvironment[Any]], settings: type[K]
) -> None: ...


def serve_environment(
    environment: Callable[..., BaseEnvironment[Any]],
    settings: type[ServerSettings] | None = None,
) -> None:
    """Serve an environment until SIGTERM or SIGINT.

    Args:
        environment: Its class, called without arguments, or with the settings if their class is
            given.
        settings: A subclass of `ServerSettings`: each of its fields is a flag of the server
            (`--my-key`) and a variable (`TURNPOINT_SERVER_MY_KEY`).

    Raises:
        SystemExit: Code 2: a flag or a variable does not fit; it is named on stderr.
        ValueError: No control token is configured, or a tool has a name that no agent calls.
    """

    def app(given: ServerSettings) -> FastAPI:
        made = environment() if settings is None else environment(given)
        return environment_app(made, given)

    serve_configured(app, settings or ServerSettings)


def environment_app(environment: BaseEnvironment[Any], settings: ServerSettings) -> FastAPI:
    """The application of one resource server; raises `ValueError` like `serve_environment`."""
    phases = Phases(settings.name, expect_restore=settings.expect_restore)
    part = ResourcePart(phases, environment)
    app = create_app(phases, part, settings)
    close_with(app, environment.aclose)
    # NeMo Gym's name and secret, derived from the class and the instance: a cookie is no
    # security, and stays valid across restarts. Without an age limit: a parked rollout's cookie
    # must not turn silently into a new session after 14 days.
    key = f"{type(environment).__name__}___{settings.name}"
    app.add_middleware(SessionMiddleware, secret_key=key, session_cookie=key, max_age=None)
    for route in environment.routes():
        endpoint = _endpoint(phases, part, route)
        app.add_api_route(f"/{route.path}", endpoint, methods=["POST"], response_model=None)
    return app


def _endpoint(phases: Phases, part: ResourcePart, route: Route[Any]) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        identity = await caller_of(phases, request, route.where)
        if identity is not None:
            _require_place(identity, route.where)
        body, digest = _parsed(route.path, await request.body())
        cookie = request.session.get(SESSION_ID_KEY)
        token = inner_caller.set(identity and identity.model_copy(update={"model_call_id": None}))
        try:
            if identity is None:
                session, receipt = await part.mutate_anonymous(
                    route.where, digest, lambda session: route.apply(session, body), cookie=cookie
                )
            else:
                session, receipt = await part.mutate(
                    Mutation(identity, route.where, digest),
                    lambda session: route.apply(session, body),
                    cookie=cookie,
                )
        finally:
            inner_caller.reset(token)
        # Assigned each time, so that the cookie is sent again with every answer.
        request.session[SESSION_ID_KEY] = session.id
        headers = {}
        if identity is not None and part.mode is Mode.EXPORT_RESTORE:
            headers[HEADER_RESOURCE_REVISION] = str(session.entry.revision)
        return Response(receipt.answer, receipt.status, headers, media_type="application/json")

    return endpoint


def _require_place(identity: Identity, where: str) -> None:
    """Raise `IdentityMismatch` unless the request id is the one of this place."""
    given, key = identity.request_id, identity.capture_key
    if where in ("tool", "step"):
        call = identity.model_call_id
        number = (given or "").rpartition("/")[2]
        fits = call is not None and number.isdecimal()
        fits = fits and given == request_id(key, str(call), int(number))
    else:
        fits = identity.model_call_id is None and given == request_id(key, where)
    if not fits:
        raise IdentityMismatch(
            f"the identity headers are not those of a {where} {CallKind.MUTATION}"
        )


def _parsed(path: str, raw: bytes) -> tuple[dict[str, Any], str]:
    """A call's body, and the digest of route and body."""
    try:
        body = json.loads(raw or b"{}")
        digest = digest_of({"path": path, "body": body})  # a lone surrogate has no UTF-8 form
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is not JSON", details={"fields": ["body"]}) from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object", details={"fields": ["body"]})
    return body, digest
