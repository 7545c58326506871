"""Which ports the stacks of this machine have taken, beyond what a bind can tell.

A port that was chosen is not bound at once: vLLM takes half a minute, the generation endpoint is
started with the job. Two stacks that start together would choose the same. So each notes its
ports in one file in the temporary folder, under a lock.

Guarantees: a port is noted for one stack at a time; a note counts while a process of its stack
or the command that starts it is alive, so nothing needs to be cleaned up after a crash.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from workers.stack.processes import live_stacks


class _Note(BaseModel):
    """One stack's ports."""

    model_config = ConfigDict(frozen=True)

    stack_id: str
    ports: list[int]
    starter: int
    starter_since: float
    """Pid and create time of the command that starts the stack."""


_NOTES = TypeAdapter(list[_Note])


class Registry:
    """The notes, while their file is locked."""

    def __init__(self, notes: list[_Note]) -> None:
        """Keep the notes that count."""
        live = live_stacks()
        self._notes = [note for note in notes if note.stack_id in live or _is_starting(note)]

    @property
    def taken(self) -> set[int]:
        """Ports of the other stacks of this machine."""
        return {port for note in self._notes for port in note.ports}

    def take(self, stack_id: str, ports: list[int]) -> None:
        """Note the ports of a stack that this process starts."""
        me = psutil.Process()
        note = _Note(stack_id=stack_id, ports=ports, starter=me.pid, starter_since=me.create_time())
        self._notes.append(note)

    def release(self, stack_id: str) -> None:
        """Drop the note of a stack that has ended."""
        self._notes = [note for note in self._notes if note.stack_id != stack_id]

    def encoded(self) -> bytes:
        """The notes as the file has them."""
        return _NOTES.dump_json(self._notes)


@contextmanager
def port_registry(path: Path | None = None) -> Iterator[Registry]:
    """The registry of this user's stacks, locked; written back if nothing fails.

    Args:
        path: Its file; by default one in the temporary folder.
    """
    path = path or Path(tempfile.gettempdir()) / f"turnpoint-ports-{os.getuid()}.json"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        registry = Registry(_read(file.read()))
        yield registry
        file.seek(0)
        file.write(registry.encoded())
        file.truncate()


def _read(content: bytes) -> list[_Note]:
    """The notes; none where a crash or a full disk left half a file: a bind still finds most."""
    try:
        return _NOTES.validate_json(content or b"[]")
    except ValidationError:
        return []


def _is_starting(note: _Note) -> bool:
    try:
        return psutil.Process(note.starter).create_time() == note.starter_since
    except psutil.NoSuchProcess:
        return False
