"""What one kind of Gym server does in each phase, and how it writes its files.

`Participant` owns phases, ids and leases; a `Part` owns the state behind them (design
section 6, what each kind saves).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from gym.checkpoint.folder import CheckpointFolder
from gym.durable import DurableFile, durable_file
from gym.protocol import (
    INNER_FILES_FOLDER,
    AcknowledgeRequest,
    Blocker,
    CommitRequest,
    Continuation,
    Counts,
    Kind,
    Mode,
    Role,
    SessionEntry,
    StorageReference,
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
        """Nothing is created before the first file."""
        self._folder = folder
        self._server = server
        self._stop = stop
        self.files: list[WrittenFile] = []
        """What has been written so far; the answer of `commit`."""

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


@dataclass
class RestoreInventory:
    """What a part holds, in the words of the commit and restore answers."""

    counts: Counts = field(default_factory=Counts)
    continuations: list[Continuation] = field(default_factory=list)
    sessions: list[SessionEntry] = field(default_factory=list)
    storage: list[StorageReference] = field(default_factory=list)


@dataclass
class Export(RestoreInventory, ABC):
    """A frozen copy of a part's state, taken on the event loop, written in a thread.

    The inventory is read after `write` has returned, so `write` may still fill it.
    """

    @abstractmethod
    def write(self, writer: PartWriter) -> None:
        """Write all files. Touches nothing that the event loop changes."""


class Part(Protocol):
    """The state behind a participant. Everything but `read` runs on the event loop."""

    kind: Kind
    mode: Mode
    role: Role | None

    def counts(self) -> Counts:
        """What is held now; `in_flight` is added by the participant."""

    def blockers(self) -> list[Blocker]:
        """What keeps the part from being ready, oldest first; calls in flight are added."""

    def export(self, request: CommitRequest) -> Export:
        """A frozen copy of the state; cheap, as it runs while the rollouts stand still."""

    def read(self, folder: Path, files: list[WrittenFile]) -> Any:
        """Parse and validate the part's files, without any effect. Runs in a thread.

        Args:
            folder: The checkpoint folder; digests have been compared already.
            files: The part's files, paths relative to `folder`.
        """

    def install(self, loaded: Any) -> RestoreInventory:
        """Take over what `read` answered, all or nothing, as runs n+1; fence the older runs."""

    def drop(self) -> None:
        """Drop everything restored, fences too."""

    def discard(self, rollout_ids: Collection[str]) -> None:
        """Drop what was restored of these rollouts; their runs n+1 stay admissible."""

    def forget(self, rollout_ids: Collection[str]) -> None:
        """Drop fences, receipts and records of rollouts that are finished for good."""

    def opened(self) -> None:
        """The phase became open: wake what is parked."""


class Acknowledging(Protocol):
    """What an agent's part has besides."""

    def acknowledge(self, request: AcknowledgeRequest) -> None:
        """Release a finished result.

        Something the part no longer has is no error.

        Raises:
            ResultConflict: The digest is another one.
        """
