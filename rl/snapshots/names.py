"""Names in the job's folder, and the renames that make and unmake an unpublished checkpoint.

    snapshot_000007                        published
    tmp_snapshot_000008-1f2e3d4c           unpublished; the first 8 characters of its id
    trash_snapshot_000003-<uuid>           being deleted; the uuid is fresh each time

Guarantees: a number is never used twice. A new one is above every number in a snapshot, tmp or
trash name, and trash with the highest number of all stays until a higher one exists.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from gym.durable import sync_folder, write_durably
from gym.protocol import INNER_FILES_FOLDER

PARTS = (INNER_FILES_FOLDER, "data_plane", "rl")
"""Folders of a checkpoint folder; each writer makes only its own below them."""
SNAPSHOT = re.compile(r"^snapshot_([0-9]{6,})$")
TMP = re.compile(r"^tmp_snapshot_([0-9]{6,})-")
TRASH = re.compile(r"^trash_snapshot_([0-9]{6,})-")
_ID_LENGTH = 8
_STRAY_FILE = re.compile(r"^\.?trash_file_([0-9]{6,})-")


def number_of(name: str) -> int:
    """The number in the name of a snapshot, tmp or trash folder."""
    for pattern in (SNAPSHOT, TMP, TRASH):
        if (found := pattern.match(name)) is not None:
            return int(found.group(1))
    raise ValueError("not the name of a snapshot, tmp or trash folder")


def snapshot_of(number: int) -> str:
    """The name of the snapshot with this number."""
    return f"snapshot_{number:06d}"


def is_of(tmp: str, checkpoint_id: str) -> bool:
    """True if an unpublished folder belongs to this checkpoint."""
    found = TMP.match(tmp)
    return found is not None and tmp[found.end() :] == checkpoint_id[:_ID_LENGTH]


class JobFolder:
    """`<snapshot_root>/<job_id>`: what is in it by name.

    Args:
        path: The folder; it need not exist yet to be looked at.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def named(self, *patterns: re.Pattern[str]) -> list[str]:
        """Names that match one of the patterns, the highest number first."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        found = [name for name in names if any(pattern.match(name) for pattern in patterns)]
        return sorted(found, key=number_of, reverse=True)

    def tmp_of(self, checkpoint_id: str) -> str | None:
        """This checkpoint's unpublished folder."""
        return next((name for name in self.named(TMP) if is_of(name, checkpoint_id)), None)

    def make_tmp(self, checkpoint_id: str) -> str:
        """Make the unpublished folder, under the next number; `make_parts` comes next."""
        taken = self.named(SNAPSHOT, TMP, TRASH)
        snapshot = snapshot_of(number_of(taken[0]) + 1 if taken else 1)
        tmp = f"tmp_{snapshot}-{checkpoint_id[:_ID_LENGTH]}"
        (self.path / tmp).mkdir()
        sync_folder(self.path)
        return tmp

    def make_parts(self, tmp: str) -> None:
        """Make the parts that an unpublished folder lacks: its maker may have died over them.

        In the folder itself: another prune may empty the trash at the same time.
        """
        for part in PARTS:
            (self.path / tmp / part).mkdir(exist_ok=True)
        sync_folder(self.path / tmp)

    def to_trash(self, names: Iterable[str]) -> list[str]:
        """Rename folders to trash; answers the new names of those that were still there."""
        trashed = []
        for name in names:
            target = f"trash_{name.removeprefix('tmp_')}-{uuid4()}"
            try:
                os.rename(self.path / name, self.path / target)
            except FileNotFoundError:
                continue  # its publish, or another one who renames it away, was first
            trashed.append(target)
        if trashed:
            sync_folder(self.path)
        return trashed

    def empty_trash(self) -> None:
        """Delete trash; a folder with the highest number of all stays, empty, and holds it."""
        taken = self.named(SNAPSHOT, TMP, TRASH)
        highest = number_of(taken[0]) if taken else 0
        for name in self.named(TRASH):
            if number_of(name) < highest:
                _remove(self.path / name)
            elif _is_folder(self.path / name):
                with contextlib.suppress(FileNotFoundError):  # another process deletes it too
                    _empty(self.path / name)

    def replace_file(self, tmp: str, name: str, data: bytes) -> None:
        """Put a file on top of an unpublished folder: complete and synced, or not at all.

        Its try lies outside the folder: one that dies, or a rename of the folder that comes in
        between, must not leave in it a file that no manifest names.
        """
        outside = self.path / f"trash_file_{number_of(tmp):06d}-{uuid4()}"
        write_durably(outside, data)
        try:
            os.rename(outside, self.path / tmp / name)
        finally:
            outside.unlink(missing_ok=True)
        sync_folder(self.path / tmp)

    def remove_stray_files(self, below: int) -> None:
        """Remove what dead tries of `replace_file` left, for folders with a lower number.

        Nothing of those may be under way.
        """
        for name in os.listdir(self.path):
            if (found := _STRAY_FILE.match(name)) and int(found.group(1)) < below:
                (self.path / name).unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    for part in folder.iterdir():
        _remove(part)


def _is_folder(path: Path) -> bool:
    """True for a real folder, whose content is ours; the target of a symlink is not."""
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path, onerror=_unless_gone)
    else:
        path.unlink(missing_ok=True)


def _unless_gone(_function: object, _path: object, failure: object) -> None:
    """Another process may be deleting the same folder."""
    error = failure[1] if isinstance(failure, tuple) else failure
    if isinstance(error, BaseException) and not isinstance(error, FileNotFoundError):
        raise error
