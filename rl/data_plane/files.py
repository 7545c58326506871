"""TransferQueue's files below a checkpoint folder: saved, synced, digested; compared before a load.

Guarantees: `save_files` answers only files that are on disk, with digests of what is on disk; it
leaves nothing under a folder's old name if that was renamed meanwhile. `verify_files` names the
first file that is missing, damaged or too much.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from gym.durable import digest_of_file, sync_file, sync_folder
from gym.protocol import DigestMismatch, NoSpace, WrittenFile
from rl.errors import DataPlaneLost, Unpublished
from rl.messages import DATA_PLANE_HOST

DATA_PLANE_FOLDER = "data_plane"


def save_files(base: Path) -> list[WrittenFile]:
    """Save TransferQueue below `base`, sync and digest it. Blocks; the folder must exist.

    Raises:
        Unpublished: `base` is gone, or another folder than before.
        NoSpace: The disk is full.
        DataPlaneLost: TransferQueue failed.
    """
    import transfer_queue as tq

    identity = _identity(base)
    if identity is None:
        raise Unpublished("the checkpoint folder is gone", details={"folder": base.name})
    target = base / DATA_PLANE_FOLDER
    try:
        tq.save_checkpoint(target)
        if _identity(base) == identity:
            # TransferQueue writes and does not sync.
            files = [_synced(base, path) for path in _files(target)]
            for path in (target, *(item for item in target.rglob("*") if item.is_dir()), base):
                sync_folder(path)
            return files
    except Exception as error:
        if _identity(base) == identity:
            if _is_full(error):
                raise NoSpace(
                    f"{DATA_PLANE_FOLDER}: {os.strerror(errno.ENOSPC)}; free space below the "
                    "snapshot root, then save again",
                    participant=DATA_PLANE_HOST,
                    details={"file": DATA_PLANE_FOLDER},
                ) from error
            raise DataPlaneLost(
                f"TransferQueue did not save ({type(error).__name__})", participant=DATA_PLANE_HOST
            ) from error
    # TransferQueue creates missing parents: folders that it made under the old name are removed.
    _remove_recreated(base)
    raise Unpublished(
        "the checkpoint folder was renamed during the save", details={"folder": base.name}
    )


def _is_full(error: BaseException | None) -> bool:
    """True if a full disk caused the error, by its text: TransferQueue's actors keep no number."""
    while error is not None:
        if os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def verify_files(base: Path, files: Sequence[WrittenFile]) -> None:
    """Compare the data plane on disk with its records: no file missing, damaged or too much.

    Raises:
        DigestMismatch: The first file that differs, named.
    """
    expected = {file.path: file for file in files}
    found = {path.relative_to(base).as_posix(): path for path in _files(base / DATA_PLANE_FOLDER)}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise _damaged(name, "missing")
        if name not in expected:
            raise _damaged(name, "not in the manifest")
        if not stat.S_ISREG(found[name].lstat().st_mode):
            raise _damaged(name, "no regular file")
        if digest_of_file(found[name]) != (expected[name].bytes, expected[name].sha256):
            raise _damaged(name, "not the file that was written")
    if not expected:
        raise _damaged(f"{DATA_PLANE_FOLDER}/controller_state.pkl", "not in the manifest")


def _damaged(name: str, why: str) -> DigestMismatch:
    return DigestMismatch(f"{name}: {why}", participant=DATA_PLANE_HOST, details={"file": name})


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _synced(base: Path, path: Path) -> WrittenFile:
    sync_file(path)
    size, sha256 = digest_of_file(path)
    return WrittenFile(path=path.relative_to(base).as_posix(), bytes=size, sha256=sha256)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove_recreated(base: Path) -> None:
    if base.exists():
        for name in (DATA_PLANE_FOLDER, f"{DATA_PLANE_FOLDER}.tmp"):
            shutil.rmtree(base / name, ignore_errors=True)
        base.rmdir()
