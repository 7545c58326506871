"""Runs a Gym server's application: one process, one event loop, JSON logs on stderr."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI

from gym.logs import configure_logging
from gym.settings import ServerSettings

GRACE_S = 1
"""How long open calls may go on after SIGTERM; state is lost then anyway."""


def serve(app: FastAPI, settings: ServerSettings) -> None:
    """Serve `app` until SIGTERM or SIGINT.

    Raises:
        SystemExit: The port is taken, or the application did not start.
    """
    configure_logging(settings.name)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=30,
    )
