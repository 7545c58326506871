"""Loopback ports for tests.

Guarantees: no other test process of this machine gets the same ports, and this one gets a port
again only after all others of its range. To find a port that is free now would not be enough:
Ray's agent binds its port seconds after the cluster was joined, and a raylet whose agent finds
its port taken ends, and with it, silently, every process that joined.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

RANGES = range(20_000, 26_000, 500)
"""Above Ray's worker ports, below what local stacks take and the kernel gives to clients."""


def free_ports(wanted: int) -> list[int]:
    """Different ports that nothing listens on; see `free_port`."""
    return [free_port() for _ in range(wanted)]


def free_port() -> int:
    """A port that nothing listens on.

    Raises:
        RuntimeError: There is none, or too many test processes run.
    """
    ports = _own_ports()
    for _ in range(RANGES.step):
        port = next(ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("something listens on every port of this test process's range")


@cache
def _own_ports() -> Iterator[int]:
    """A range of this process, kept from others by a lock that ends with it."""
    folder = Path(tempfile.gettempdir(), f"turnpoint-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for first in RANGES:
        lock = os.open(folder / str(first), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return cycle(range(first, first + RANGES.step))
    raise RuntimeError(f"{len(RANGES)} test processes have taken every range of ports")
