"""One process per Gym server: sessions, ledger and phases live in its memory.

`uvicorn --workers 2` over an application factory starts processes that share the server's port and
know nothing of each other: each call, also each control call, would reach any one of them.

Guarantees: of one server (snapshot root, name, address) one process at a time serves; a second one
ends at its start with `MoreThanOneProcess`. The lock is an abstract Unix socket, which the kernel
releases with the process: a server that is started again after a SIGKILL finds it free. Its scope
is the network namespace, like that of the port that the processes would share, so a fleet on
another machine or container, over the same snapshot root, is not affected. An application that is
never started (called in process) takes no lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gym.protocol import MoreThanOneProcess
from gym.server.settings import ServerSettings

WEB_CONCURRENCY = "WEB_CONCURRENCY"
"""uvicorn's variable for the number of worker processes; some platforms set it by themselves."""


@contextmanager
def only_process(settings: ServerSettings) -> Iterator[None]:
    """Be the one process of a server while the block runs.

    Raises:
        MoreThanOneProcess: Another process serves it.
    """
    place = f"{settings.snapshot_root}\n{settings.name}\n{settings.host}\n{settings.port}"
    name = f"\0turnpoint-{hashlib.sha256(place.encode()).hexdigest()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
        try:
            mine.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise MoreThanOneProcess(
                f"another process serves {settings.name} on {settings.host}:{settings.port}, and "
                "the state of a Gym server lives in one: start it with one worker (no --workers, "
                f"no {WEB_CONCURRENCY}), or end the other process",
                participant=settings.name,
            ) from None
        yield


def require_one_worker(
    settings: ServerSettings, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise unless the environment asks for one process.

    Raises:
        MoreThanOneProcess: `WEB_CONCURRENCY` is set to something else.
    """
    if environment.get(WEB_CONCURRENCY, "1").strip() not in ("", "1"):
        raise MoreThanOneProcess(
            f"{WEB_CONCURRENCY} asks for more than one process of {settings.name}, and the state "
            "of a Gym server lives in one: unset it, or set it to 1",
            participant=settings.name,
        )
