"""The files of one server in one checkpoint: written complete, counted and digested."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gym.checkpoint.folder import CheckpointFolder
from gym.durable import DurableFile, durable_file
from gym.protocol import (
    INNER_FILES_FOLDER,
    Continuation,
    DigestMismatch,
    UnsupportedSchema,
    Wire,
    WrittenFile,
    canonical_json,
)


class WriterStopped(Exception):
    """The checkpoint that this writer works for has ended: nothing more is to be written."""


class PartWriter:
    """Writes one server's files of one checkpoint. Used in a thread.

    Args:
        folder: The checkpoint folder.
        server: Name of this server; files go to `gym/<server>/`.
        stop: Set when the checkpoint has ended; looked at between records and before a file
            gets its name.
    """

    def __init__(self, folder: CheckpointFolder, server: str, stop: threading.Event) -> None:
        self._folder = folder
        self._server = server
        self._stop = stop
        self.files: list[WrittenFile] = []
        """Files written so far; the answer of `commit`."""

    def jsonl(self, name: str, records: Iterable[Mapping[str, Any] | Wire]) -> WrittenFile:
        """Write one canonical JSON object a line.

        Raises:
            WriterStopped: The checkpoint ended meanwhile.
            OSError: Disk full, folder gone, ...
        """
        count = 0
        with self._create(name) as file:
            for record in records:
                self.raise_if_stopped()
                plain = record.model_dump(mode="json") if isinstance(record, Wire) else record
                file.write(canonical_json(plain) + b"\n")
                count += 1
            self.raise_if_stopped()
        return self._written(name, file, count)

    def parquet(self, name: str, table: pa.Table) -> WrittenFile:
        """Write a table. Raises like `jsonl`."""
        with self._create(name) as file:
            pq.write_table(table, cast(IO[Any], file))
            self.raise_if_stopped()
        return self._written(name, file, table.num_rows)

    def bytes(self, name: str, data: bytes) -> WrittenFile:
        """Write `data` as it is. Raises like `jsonl`."""
        with self._create(name) as file:
            file.write(data)
            self.raise_if_stopped()
        return self._written(name, file, None)

    def read_reference(self, file: WrittenFile) -> Path:
        """Path of another server's file of this checkpoint, after its digest was compared.

        Raises:
            DigestMismatch: It is not the file that was referred to.
            FolderOutsideRoot: It does not lie below `<folder>/gym`.
        """
        self.raise_if_stopped()
        return self._folder.verified(file)

    def raise_if_stopped(self) -> None:
        """Raise `WriterStopped` if the checkpoint has ended."""
        if self._stop.is_set():
            raise WriterStopped

    def _create(self, name: str) -> AbstractContextManager[DurableFile]:
        self.raise_if_stopped()
        return durable_file(self._folder.own(self._server) / name)

    def _written(self, name: str, file: DurableFile, records: int | None) -> WrittenFile:
        written = WrittenFile(
            path=f"{INNER_FILES_FOLDER}/{self._server}/{name}",
            bytes=file.size_bytes,
            records=records,
            sha256=file.sha256,
        )
        self.files.append(written)
        return written


def read_continuations(path: Path) -> list[Continuation]:
    """Read an agent's `continuations.jsonl`.

    Raises:
        UnsupportedSchema: A line that is not exactly a continuation.
    """
    lines = path.read_bytes().splitlines()
    try:
        return [Continuation.model_validate_json(line) for line in lines]
    except ValidationError:
        raise UnsupportedSchema(f"{path.name} holds a line that does not parse") from None


def file_named(folder: Path, files: Iterable[WrittenFile], name: str) -> Path:
    """Path of the file called `name` among a server's files.

    Raises:
        DigestMismatch: It is not among them, or more than once.
    """
    found = [file for file in files if file.path.rpartition("/")[2] == name]
    if len(found) != 1:
        raise DigestMismatch(f"{name} is not among the files of this server exactly once")
    return folder / found[0].path
