"""Comparing a checkpoint folder with the list of files it must hold.

Guarantees: after `check` returned, the folder holds exactly the listed files (and the manifest),
each a regular file with the listed size and sha256, and folders; with `sync`, all of it is on
disk. The first difference is raised, files in the order of their paths.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gym.durable import sync_file, sync_folder
from gym.protocol import DigestMismatch, TurnpointError, WrittenFile
from rl.snapshots.manifest import MANIFEST

_CHUNK_BYTES = 1 << 20
_AT_A_TIME = 8
Problem = Callable[[str, str], TurnpointError]
"""Makes the error from the file's relative path and the reason."""


def check(folder: Path, files: Iterable[WrittenFile], problem: Problem, *, sync: bool) -> None:
    """Compare `folder` with `files`.

    Args:
        folder: The checkpoint folder.
        files: What it must hold, relative paths; each named once.
        problem: Makes the error that is raised.
        sync: Also sync each file and every folder, deepest first.

    Raises:
        TurnpointError: What `problem` makes, for the first file that is missing, too much, not
            a regular file, unreadable, or of another size or digest.
        OSError: A folder is gone or cannot be listed or synced.
    """
    expected: dict[str, WrittenFile] = {}
    for file in files:
        if file.path in expected or file.path == MANIFEST or ".." in file.path.split("/"):
            raise problem(file.path, "it cannot be listed, or is listed twice")
        expected[file.path] = file
    found, folders = _walk(folder, problem)

    def compare(path: str) -> None:
        if path not in expected:
            raise problem(path, "no writer has answered it")
        if path not in found:
            raise problem(path, "it is missing")
        _compare(folder / path, expected[path], problem, sync=sync)

    # Publishing is inside the pause: disks sync, and hashes run, several files at a time.
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="folder-check") as pool:
        for _ in pool.map(compare, sorted(expected.keys() | found)):
            pass
    if sync:
        for place in reversed(folders):
            sync_folder(place)


def verified_bytes(folder: Path, path: str, listed: WrittenFile | None) -> bytes:
    """The content of one file, if it is the one that was written.

    Args:
        folder: The snapshot folder.
        path: Relative to it.
        listed: The file in the manifest.

    Raises:
        DigestMismatch: It is missing, not listed, or another one; the file is named.
    """
    if listed is None:
        raise DigestMismatch(f"{path} is not in the manifest", details={"file": path})
    try:
        data = (folder / path).read_bytes()
    except OSError as error:
        raise DigestMismatch(
            f"{path} cannot be read ({error.strerror})", details={"file": path}
        ) from None
    if (len(data), hashlib.sha256(data).hexdigest()) != (listed.bytes, listed.sha256):
        raise DigestMismatch(f"{path} is not the file that was written", details={"file": path})
    return data


def _walk(folder: Path, problem: Problem) -> tuple[set[str], list[Path]]:
    files: set[str] = set()
    folders = [folder]  # each before the folders in it; grows while it is walked
    for place in folders:
        with os.scandir(place) as entries:
            for entry in entries:
                path = Path(entry.path)
                relative = path.relative_to(folder).as_posix()
                if entry.is_symlink():
                    raise problem(relative, "it is a symlink")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif not entry.is_file(follow_symlinks=False):
                    raise problem(relative, "it is not a regular file")
                elif relative != MANIFEST:
                    files.add(relative)
    return files, folders


def _compare(path: Path, expected: WrittenFile, problem: Problem, *, sync: bool) -> None:
    digest = hashlib.sha256()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != expected.bytes:
                raise problem(expected.path, f"{status.st_size} bytes, not {expected.bytes}")
            size = 0
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise problem(expected.path, f"cannot be read ({error.strerror})") from error
    if size != expected.bytes or digest.hexdigest() != expected.sha256:
        raise problem(expected.path, "its sha256 is another one")
    if sync:
        sync_file(path)
