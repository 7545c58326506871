"""Runs a Gym server's application: one process, one event loop, JSON logs on stderr."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from gym.logs import configure_logging
from gym.protocol import MoreThanOneProcess
from gym.server.one_process import require_one_worker
from gym.server.settings import ServerSettings, settings_from_command_line

log = logging.getLogger("turnpoint.gym")
S = TypeVar("S", bound=ServerSettings)

GRACE_S = 1
"""Seconds for which open calls may go on after SIGTERM; state is lost then anyway."""


def serve_configured(create_app: Callable[[S], FastAPI], settings: type[S]) -> None:
    """Serve an application, configured by flags and `TURNPOINT_SERVER_*`, like `serve`.

    Args:
        create_app: Makes the application.
        settings: Class of its settings.

    Raises:
        SystemExit: Also 2 if a flag or a variable does not fit.
    """
    given = settings_from_command_line(settings)
    serve(create_app(given), given)


def serve(app: FastAPI, settings: ServerSettings) -> None:
    """Serve `app` until SIGTERM or SIGINT.

    Raises:
        SystemExit: The port is taken, or the application did not start; 2 if the environment
            asks for more than one process.
    """
    configure_logging(settings.name)
    try:
        require_one_worker(settings)
    except MoreThanOneProcess as error:
        log.error(error.message, extra={"event": "refused", "code": error.code})
        raise SystemExit(2) from None
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=30,
        workers=1,
    )
