"""Ports of a local stack: free ones, kept over restarts, and noted for this machine's other stacks.

Temporal's SQLite file and the URLs in a job's configuration outlive a crash, so a stack keeps the
ports it once chose (`stack.json`) while they are free. A bind does not tell all: vLLM binds its
port half a minute after it was chosen, the generation endpoint with the job's start. So each stack
notes its ports in one file of its user in the temporary folder, under a lock.

Guarantees: a port is noted for one stack at a time. A note counts while a process of its stack, or
the command that starts it, is alive: after a crash there is nothing to clean up.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import psutil
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gym.durable import write_durably
from workers.errors import PortInUse
from workers.stack.processes import live_stacks

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """True if a listener can be bound to a loopback port now."""
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
        names: Names of the ports that are needed.
        fixed: Ports that the settings demand.
        kept: Ports of the last start, taken again while they are free.
        base: Lowest port to try for a free one.
        others: Ports that other stacks have noted, bound or not.
        keys: The setting that demands a port, where it is not `ports.<name>`.

    Raises:
        PortInUse: A fixed port is in use, or no port from `base` on is free.
    """

    def is_usable(port: int) -> bool:
        return port not in others and is_free(port)

    chosen: dict[str, int] = {}
    for name in [name for name in names if name in fixed]:
        if not is_usable(fixed[name]):
            key = keys.get(name, f"ports.{name}")
            raise PortInUse(
                f"{name}: port {fixed[name]} is in use; end what holds it, or give another "
                f"one ({key}), or none to take a free one"
            )
        chosen[name] = fixed[name]
    for name in names:
        if name not in chosen and name in kept and is_usable(kept[name]):
            chosen[name] = kept[name]
    taken = {*chosen.values(), *fixed.values()}
    candidates = (port for port in range(base, 65_536) if port not in taken and is_usable(port))
    for name in names:
        if name not in chosen:
            port = next(candidates, None)
            if port is None:
                raise PortInUse(f"{name}: no free port from {base} on; give another port_base")
            chosen[name] = port
    return chosen


class Note(BaseModel):
    """The ports of one stack, and pid and create time of the command that starts it."""

    model_config = ConfigDict(frozen=True)

    stack_id: str
    ports: list[int]
    starter: int
    starter_since: float

    @property
    def is_starting(self) -> bool:
        """True while the command that starts the stack is alive."""
        try:
            return psutil.Process(self.starter).create_time() == self.starter_since
        except psutil.NoSuchProcess:
            return False


_NOTES = TypeAdapter(list[Note])


class Registry(dict[str, Note]):
    """The notes of the stacks that live or are being started, by stack id."""

    @property
    def taken(self) -> set[int]:
        """All ports that are noted."""
        return {port for note in self.values() for port in note.ports}

    def take(self, stack_id: str, ports: Mapping[str, int]) -> None:
        """Note the ports of a stack that this process starts, instead of those it had."""
        me, numbers = psutil.Process(), list(ports.values())
        self[stack_id] = Note(
            stack_id=stack_id, ports=numbers, starter=me.pid, starter_since=me.create_time()
        )


@contextmanager
def port_registry(path: Path | None = None) -> Iterator[Registry]:
    """The registry of this user's stacks, locked; written back if the block raises nothing.

    Other users may write into the temporary folder, where it lies by default: neither it nor its
    lock file is ever written through a link that another user has put there.
    """
    path = path or Path(tempfile.gettempdir()) / f"turnpoint-ports-{os.getuid()}.json"
    with FileLock(f"{path}.lock", mode=0o600):  # opened with O_NOFOLLOW
        live = live_stacks()
        notes = [note for note in _read(path) if note.stack_id in live or note.is_starting]
        registry = Registry({note.stack_id: note for note in notes})
        yield registry
        write_durably(path, _NOTES.dump_json(list(registry.values())))


def _read(path: Path) -> list[Note]:
    """The notes; none if the file is damaged: a bind still finds most ports in use."""
    try:
        return _NOTES.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return []
