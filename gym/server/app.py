"""The application of a Gym server: control routes, `/health`, typed errors, and its shutdown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from gym.checkpoint.part import Part
from gym.checkpoint.participant import Participant
from gym.checkpoint.phases import Phases
from gym.server.answers import install_error_answers
from gym.server.control_routes import install_control_routes
from gym.server.one_process import only_process
from gym.server.settings import ServerSettings


def create_app(
    phases: Phases, part: Part, settings: ServerSettings, *, guarded: Sequence[str] = ()
) -> FastAPI:
    """An application with the control routes, `/health`, and typed errors.

    Args:
        phases: The server's state machine, which `part` shares.
        part: The state that is saved and restored.
        settings: Name, token and snapshot root.
        guarded: Further path prefixes that ask for the bearer token.

    Raises:
        ValueError: No control token is configured.

    Its start raises `MoreThanOneProcess` if another process serves the same server.
    """
    participant = Participant(phases, part, settings.snapshot_root)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with only_process(settings):
            yield
            participant.shut_down()

    app = FastAPI(title=settings.name, lifespan=lifespan, openapi_url=None)
    install_control_routes(app, participant, settings.token(), guarded=guarded)
    install_error_answers(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def close_with(app: FastAPI, aclose: Callable[[], Awaitable[None]]) -> None:
    """Have `aclose` called when the application shuts down, before what it did already."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[None]:
        async with inner(running):
            try:
                yield
            finally:
                await aclose()

    app.router.lifespan_context = lifespan
