"""Runs a Gym server's application: one process, one event loop, JSON logs on stderr."""

from __future__ import annotations

import logging

import uvicorn
from fastapi import FastAPI

from gym.logs import configure_logging
from gym.protocol import MoreThanOneProcess
from gym.server.one_process import require_one_worker
from gym.server.settings import ServerSettings

log = logging.getLogger("turnpoint.gym")

GRACE_S = 1
"""Seconds for which open calls may go on after SIGTERM; state is lost then anyway."""


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
