"""Ports of a local stack: free ones, kept over restarts.

Temporal's SQLite file and the URLs in a job's configuration outlive a crash, so a stack keeps
the ports it once chose (`stack.json`) while they are free.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType

from workers.errors import PortInUse

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether a listener can be bound to a loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def choose(
    names: Sequence[str],
    *,
    fixed: Mapping[str, int],
    kept: Mapping[str, int],
    base: int,
    others: Set[int] = frozenset(),
    keys: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, int]:
    """A port for each name.

    Args:
        names: Who needs one.
        fixed: Ports that the settings demand.
        kept: Ports of the last start, taken again while they are free.
        base: Where to look for free ones, upward.
        others: Ports that other stacks have taken, bound or not (`workers.stack.port_registry`).
        keys: The setting that demands a port, where it is not `ports.<name>`.

    Raises:
        PortInUse: A fixed port is held by somebody else, or no port from `base` on is free.
    """
    chosen: dict[str, int] = {}
    for name in names:
        if name in fixed:
            if fixed[name] in others or not is_free(fixed[name]):
                key = keys.get(name, f"ports.{name}")
                raise PortInUse(
                    f"{name}: port {fixed[name]} is in use; end what holds it, or give another "
                    f"one ({key}), or none to take a free one"
                )
            chosen[name] = fixed[name]
    for name in names:
        port = kept.get(name)
        if name not in chosen and port is not None and port not in others and is_free(port):
            chosen[name] = port
    taken = {*chosen.values(), *fixed.values(), *others}
    candidates = iter(range(base, 65_536))
    for name in names:
        if name not in chosen:
            chosen[name] = next(
                (port for port in candidates if port not in taken and is_free(port)), 0
            )
            if not chosen[name]:
                raise PortInUse(f"{name}: no free port from {base} on; give another port_base")
            taken.add(chosen[name])
    return chosen
