"""What an environment author writes, and the HTTP server around it.

    class Counter(ResourceServer[int]):
        async def seed(self, row): ...
        def tools(self): return {"increment": Tool(Increment, self.increment)}
        async def verify(self, session, row, response): ...
        def export_state(self, state): ...     # these two make the server survive a crash:
        def import_state(self, data): ...      # without them its rollouts start over

Routes and shapes are NeMo Gym's: `/seed_session`, `/<tool>`, `/verify`, session cookies, rows
with `responses_create_params`. Guarantees: those of `gym.resource.session` and `gym.resource.part`.
Calls without identity headers have sessions of their own (`gym.resource.anonymous_sessions`).
Environments in the gymnasium style (`/reset`, `/step`) are served by
`gym.resource.gymnasium_server` from the same pieces.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.middleware.sessions import SessionMiddleware

from gym.checkpoint.phases import Phases
from gym.formats.tool_calls import is_tool_name
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
from gym.resource.part import Handler, ResourcePart
from gym.resource.session import Mutation, Refused, RefusedAs, Result, Session
from gym.server.anonymous_calls import caller_of
from gym.server.answers import invalid_request
from gym.server.app import create_app
from gym.server.settings import ServerSettings

__all__ = [
    "Environment",
    "Refused",
    "ResourceServer",
    "Routes",
    "Tool",
    "create_resource_app",
    "environment_app",
    "inner_identity",
    "parsed",
    "row_and_response",
]

S = TypeVar("S")
A = TypeVar("A", bound=BaseModel)
SESSION_ID_KEY = "session_id"
"""Key in the cookie, as NeMo Gym has it."""

_inner: ContextVar[Identity | None] = ContextVar("identity of the step that runs")


@dataclass(frozen=True)
class Tool(Generic[S]):
    """One tool: its arguments' model, and what it does to a session.

    `apply` gets the session and the parsed arguments, changes `session.state` or assigns it
    anew, and answers the tool's result.
    """

    arguments: type[BaseModel]
    apply: Callable[[Session[S], Any], Awaitable[Result]]


class Environment(ABC, Generic[S]):
    """What environments of every style declare. `S` is the type of one session's state.

    Handlers run one at a time per session. `session.state` is theirs to read and to assign.
    Random generators are part of the state.
    """

    errors_free_of_effect: ClassVar[bool] = False
    """Declare True only if a handler that raises leaves its session as it was. Otherwise such a
    session is uncertain and its rollout starts over. `Refused` is always free of effect."""
    stateless: ClassVar[bool] = False
    """Declare True if no session has any state: nothing is exported, nothing can be lost."""

    def export_state(self, state: S) -> bytes:
        """One session's state as bytes. Called in a thread, while no handler runs on it."""
        raise NotImplementedError

    def import_state(self, data: bytes) -> S:
        """The state behind `export_state`'s bytes. Called in a thread; raises if they are bad."""
        raise NotImplementedError

    @property
    def mode(self) -> Mode:
        """`export_restore` if both methods are written, else `restart_only` or `stateless`."""
        if self.stateless:
            return Mode.STATELESS
        kind = type(self)
        written = (
            kind.export_state is not Environment.export_state,
            kind.import_state is not Environment.import_state,
        )
        if any(written) and not all(written):
            raise TypeError(f"{kind.__name__} writes one of export_state and import_state only")
        return Mode.EXPORT_RESTORE if all(written) else Mode.RESTART_ONLY


class ResourceServer(Environment[S]):
    """An environment whose tools the model calls. `S` is the type of one session's state."""

    @abstractmethod
    async def seed(self, row: dict[str, Any]) -> S:
        """State of a new session, from the dataset row."""

    @abstractmethod
    def tools(self) -> Mapping[str, Tool[S]]:
        """The tools by name; asked once."""

    @abstractmethod
    async def verify(
        self, session: Session[S], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Judge a finished rollout.

        Returns:
            `reward`, and whatever else is to stand in the verify answer beside the row and the
            response.
        """


def parsed(model: type[A], value: object) -> A:
    """Parse a row or arguments inside a handler, before anything is changed.

    Raises:
        RefusedAs: Answered as 422 `invalid_request`, with the fields named and their values
            hidden; leaves the session certain.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RefusedAs(invalid_request([dict(item) for item in error.errors()])) from None


def inner_identity() -> Identity | None:
    """Identity for model calls made inside the handler that runs (a judge): send its headers.

    None if the call that the handler serves has none: then send none.
    """
    return _inner.get()


def create_resource_app(environment: ResourceServer[Any], settings: ServerSettings) -> FastAPI:
    """The application of one resource server.

    Raises:
        ValueError: No control token is configured, or a tool has a name that no agent calls.
    """
    app, routes = environment_app(environment, settings)

    async def seed(session: Session[Any], body: dict[str, Any]) -> Result:
        session.state = await environment.seed(body)
        session.seeded = True
        return {}

    async def verify(session: Session[Any], body: dict[str, Any]) -> Result:
        row, response = row_and_response(body)
        return {**body, **await environment.verify(session, row, response)}

    routes.add(app, "seed_session", "seed", seed)
    routes.add(app, "verify", "verify", verify)
    for name, tool in environment.tools().items():
        if name in ("health", "checkpoint") or not is_tool_name(name):
            raise ValueError(f"a tool cannot be called {name}: agents never call that")
        routes.add(app, name, "tool", _tool_handler(tool))
    return app


def environment_app(
    environment: Environment[Any], settings: ServerSettings
) -> tuple[FastAPI, Routes]:
    """An application without data-plane routes yet, and where they are added.

    Raises:
        ValueError: No control token is configured.
    """
    phases = Phases(settings.name, expect_restore=settings.expect_restore)
    part = ResourcePart(phases, environment)
    app = create_app(phases, part, settings)
    # NeMo Gym's name and secret, derived from the class and the instance: a cookie is no
    # security, and stays valid across restarts. Without an age limit: a parked rollout's cookie
    # must not turn silently into a new session after 14 days.
    key = f"{type(environment).__name__}___{settings.name}"
    app.add_middleware(SessionMiddleware, secret_key=key, session_cookie=key, max_age=None)
    return app, Routes(phases, part)


def row_and_response(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two halves of a `verify` or `step` body.

    Raises:
        RefusedAs: There is no response in it.
    """
    response = body.get("response")
    if not isinstance(response, dict):
        raise RefusedAs(invalid_request([{"loc": ("response",)}]))
    return {key: value for key, value in body.items() if key != "response"}, response


Body = Callable[[Session[Any], dict[str, Any]], Awaitable[Result]]


def _tool_handler(tool: Tool[Any]) -> Body:
    async def apply(session: Session[Any], body: dict[str, Any]) -> Result:
        return await tool.apply(session, parsed(tool.arguments, body))

    return apply


class Routes:
    """Turns HTTP calls into mutations."""

    def __init__(self, phases: Phases, part: ResourcePart) -> None:
        """Add no route yet."""
        self._phases = phases
        self._part = part

    def add(self, app: FastAPI, path: str, where: str, work: Body) -> None:
        """Serve `POST /<path>` by `work`.

        Args:
            app: The application.
            path: Name of the route.
            where: Which mutation it is: `seed`, `verify`, or a turn's `tool` or `step`.
            work: Does it.
        """

        async def endpoint(request: Request) -> Response:
            return await self._serve(request, path, where, work)

        app.add_api_route(f"/{path}", endpoint, methods=["POST"], name=path, response_model=None)

    async def _serve(self, request: Request, path: str, where: str, work: Body) -> Response:
        identity = await caller_of(self._phases, request, where)
        if identity is not None:
            _refuse_other_place(identity, where)
        body, digest = _asked(path, await request.body())
        cookie = request.session.get(SESSION_ID_KEY)
        token = _inner.set(identity and identity.model_copy(update={"model_call_id": None}))
        try:
            if identity is None:
                session, receipt = await self._part.mutate_unidentified(
                    where, digest, _on(work, body), cookie=cookie
                )
            else:
                session, receipt = await self._part.mutate(
                    Mutation(identity, where, digest), _on(work, body), cookie=cookie
                )
        finally:
            _inner.reset(token)
        # Assigned each time, so that the cookie is sent again with every answer.
        request.session[SESSION_ID_KEY] = session.id
        headers = {}
        if identity is not None and self._part.mode is Mode.EXPORT_RESTORE:
            headers[HEADER_RESOURCE_REVISION] = str(session.entry.revision)
        return Response(
            receipt.answer,
            status_code=receipt.status,
            media_type="application/json",
            headers=headers,
        )


def _refuse_other_place(identity: Identity, where: str) -> None:
    """Raise `IdentityMismatch` unless the request id is the one that this place has."""
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


def _on(work: Body, body: dict[str, Any]) -> Handler:
    async def handler(session: Session[Any]) -> Result:
        return await work(session, body)

    return handler


def _asked(path: str, raw: bytes) -> tuple[dict[str, Any], str]:
    """A call's body, and the digest of route and body."""
    try:
        body = json.loads(raw or b"{}")
        digest = digest_of({"path": path, "body": body})  # a lone surrogate has no UTF-8 form
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is not JSON", details={"fields": ["body"]}) from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object", details={"fields": ["body"]})
    return body, digest
