"""The part of a resource server that an environment author writes.

    from gym.resource import Environment, serve_environment, tool

    class Counter(Environment[int]):
        async def seed(self, row):
            return row["initial_count"]

        @tool
        async def increment_counter(self, session, count: int):
            session.state += count
            return {"success": True}

        async def verify(self, session, row, response):
            return {"reward": float(session.state == row["expected_count"])}

        def export_state(self, state):  # These two let a rollout go on after a crash.
            return str(state).encode()  # Without them it starts over.

        def import_state(self, data):
            return int(data)

    serve_environment(Counter)

`gym.resource.gymnasium_environment` is the same for environments that are reset and stepped.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from gym.formats.tool_calls import is_tool_name
from gym.protocol import Identity, Mode
from gym.resource.session import Refused, Result, Session
from gym.server.answers import invalid_request

S = TypeVar("S")
M = TypeVar("M", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Awaitable[Result]])
_TOOL_MARK = "__turnpoint_tool__"

inner_caller: ContextVar[Identity | None] = ContextVar("identity of the mutation", default=None)


@dataclass(frozen=True)
class Route(Generic[S]):
    """One mutation that an environment serves as `POST /<path>`.

    Attributes:
        path: Name of the route.
        where: `seed`, `verify`, or a turn's `tool` or `step`.
        apply: Given the session and the body, does it.
    """

    path: str
    where: str
    apply: Callable[[Session[S], dict[str, Any]], Awaitable[Result]]


class BaseEnvironment(ABC, Generic[S]):
    """Declarations of environments of every style. `S` is the type of one session's state.

    Handlers run one at a time per session. `session.state` is theirs to read and to assign.
    Random generators are part of the state.
    """

    errors_free_of_effect: ClassVar[bool] = False
    """Declare True only if a handler that raises leaves its session as it was. Otherwise such a
    session is uncertain and its rollout starts over. `Refused` is always free of effect."""
    stateless: ClassVar[bool] = False
    """Declare True if no session has any state: nothing is exported, nothing can be lost."""

    @abstractmethod
    def routes(self) -> list[Route[S]]:
        """The mutations that it serves."""

    def export_state(self, state: S) -> bytes:
        """One session's state as bytes. Called in a thread, while no handler runs on it."""
        raise NotImplementedError

    def import_state(self, data: bytes) -> S:
        """The state behind `export_state`'s bytes. Called in a thread; raises if they are bad."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Called when the server stops."""

    @property
    def mode(self) -> Mode:
        """`export_restore` if both methods are written, else `restart_only` or `stateless`."""
        if self.stateless:
            return Mode.STATELESS
        kind = type(self)
        written = {
            kind.export_state is not BaseEnvironment.export_state,
            kind.import_state is not BaseEnvironment.import_state,
        }
        if len(written) > 1:
            raise TypeError(f"{kind.__name__} writes one of export_state and import_state only")
        return Mode.EXPORT_RESTORE if True in written else Mode.RESTART_ONLY


class Environment(BaseEnvironment[S]):
    """An environment whose tools the model calls: its methods with the decorator `tool`."""

    @abstractmethod
    async def seed(self, row: dict[str, Any]) -> S:
        """State of a new session, from the dataset row."""

    @abstractmethod
    async def verify(
        self, session: Session[S], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Judge a finished rollout.

        Returns:
            `reward`, and whatever else is to stand in the verify answer beside the row and the
            response.
        """

    def tools(self) -> Mapping[str, Callable[..., Awaitable[Result]]]:
        """The tools by name, each as `tool` says; called once."""
        marked = inspect.getmembers(type(self), lambda member: hasattr(member, _TOOL_MARK))
        return {name: getattr(self, name) for name, _ in marked}

    def routes(self) -> list[Route[S]]:
        """Seed, verify and tools.

        Raises:
            ValueError: A tool has a name that no agent calls.
        """

        async def seed(session: Session[S], body: dict[str, Any]) -> Result:
            session.state = await self.seed(body)
            return {}

        async def verify(session: Session[S], body: dict[str, Any]) -> Result:
            row, response = row_and_response(body)
            return {**body, **await self.verify(session, row, response)}

        found = [Route("seed_session", "seed", seed), Route("verify", "verify", verify)]
        for name, method in self.tools().items():
            if name in ("health", "checkpoint") or not is_tool_name(name):
                raise ValueError(f"a tool cannot be called {name}: agents never call that")
            found.append(_tool_route(name, method))
        return found


def tool(method: F) -> F:
    """Make a method of an `Environment` a tool of its name.

    The first parameter is the session; the others, by their annotations, are the arguments that
    the model gives. Arguments that do not fit are refused, and the model is told their names.
    """
    setattr(method, _TOOL_MARK, True)
    return method


def parse(model: type[M], value: object) -> M:
    """Parse a row or arguments inside a handler, before anything is changed.

    Raises:
        Refused: Answered as 422 `invalid_request`, with the fields named and their values hidden;
            leaves the session certain.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        invalid = invalid_request([dict(item) for item in error.errors()])
        raise Refused.with_error(invalid) from None


def inner_identity() -> Identity | None:
    """Identity for model calls made inside the handler that runs (a judge).

    None if the caller of the handler has none: the model call has none either.
    """
    return inner_caller.get()


def row_and_response(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two halves of a `verify` or `step` body.

    Raises:
        Refused: There is no response in it.
    """
    response = body.get("response")
    if not isinstance(response, dict):
        raise Refused.with_error(invalid_request([{"loc": ("response",)}]))
    return {key: value for key, value in body.items() if key != "response"}, response


def _tool_route(path: str, method: Callable[..., Awaitable[Result]]) -> Route[Any]:
    _, *parameters = inspect.signature(method).parameters.values()
    fields: dict[str, Any] = {
        parameter.name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters
    }
    arguments = create_model(
        path,
        __config__=ConfigDict(hide_input_in_errors=True, protected_namespaces=()),
        __module__=method.__module__,  # where annotations that are strings are looked up
        **fields,
    )

    async def apply(session: Session[Any], body: dict[str, Any]) -> Result:
        given = parse(arguments, body)
        return await method(session, **{name: getattr(given, name) for name in fields})

    return Route(path, "tool", apply)
