"""Files that are complete and on disk under their name, or do not exist under that name.

Guarantees: a file is created exclusively under a name unique to the try, synced, renamed, and
its folder synced (design section 4). A try that fails or is interrupted removes its own file;
one that dies leaves a hidden `.<name>.<uuid>.try`. Nothing here creates a folder.
Not guaranteed: protection from another writer of the same final name. The last rename wins, except
with `create_exclusively`, where the first creator does.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from typing_extensions import Buffer

from gym.protocol import NoSpace, NotWritten

_CHUNK_BYTES = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DurableFile(io.RawIOBase):
    """The file of one try, created exclusively; counts and digests the bytes written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        """Digest (hex) of everything written so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """True: the file is written front to back and never read."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Append all of `data`; answers its length in bytes."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        rest = view
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self.size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size_bytes

    def sync(self) -> None:
        """Return only when the content is on disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; repeatable."""
        if not self.closed:
            os.close(self._fd)
        super().close()


@contextmanager
def durable_file(path: Path) -> Iterator[DurableFile]:
    """Write `path` so that it appears complete and synced, or not at all.

    Leaving the block with an error removes the try and leaves `path` as it was.

    Raises:
        OSError: The folder is gone, the disk is full, ...
    """
    with _trying(path) as (attempt, file):
        yield file
        file.sync()
        file.close()
        os.rename(attempt, path)
    sync_folder(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path`, complete and synced; replaces what was there."""
    with durable_file(path) as file:
        file.write(data)


def create_exclusively(path: Path, data: bytes) -> None:
    """Create `path` with `data`, complete and synced; of two creators exactly one succeeds.

    Raises:
        FileExistsError: Another creator was first; its file is untouched.
    """
    with _trying(path) as (attempt, file):
        file.write(data)
        file.sync()
        file.close()
        # A hard link fails where the name exists; a rename would replace it.
        os.link(attempt, path)
        os.unlink(attempt)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Return only when the content of a file, written by another process, is on disk."""
    _sync(path, os.O_NOFOLLOW)


def sync_folder(folder: Path) -> None:
    """Return only when the names in `folder` are on disk."""
    _sync(folder, os.O_DIRECTORY)


def digest_of_file(path: Path) -> tuple[int, str]:
    """Size in bytes and sha256 (hex) of a file on disk; a symlink is an `OSError`."""
    digest = hashlib.sha256()
    size = 0
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def refusal_of_the_disk(error: OSError, *, participant: str) -> NotWritten:
    """The typed error for an error of the disk.

    Args:
        error: As the operating system raised it.
        participant: Server or actor that wrote the file.
    """
    name = Path(error.filename).name if isinstance(error.filename, str) else "a file"
    details = {"file": name}
    if error.errno in _FULL:
        return NoSpace(
            f"{name}: {error.strerror}; free space below the snapshot root, then save again",
            participant=participant,
            details=details,
        )
    return NotWritten(
        f"{name}: {error.strerror or type(error).__name__}; look at the snapshot root's disk and "
        "permissions",
        participant=participant,
        details=details,
    )


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _trying(path: Path) -> Iterator[tuple[Path, DurableFile]]:
    attempt = path.with_name(f".{path.name}.{uuid4().hex}.try")
    file = DurableFile(attempt)
    try:
        yield attempt, file
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)  # a write names no file, and the name of a try is of no use
        file.close()
        attempt.unlink(missing_ok=True)
        raise
