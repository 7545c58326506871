"""The job's folder of snapshots: reserve, publish, discard, verify, prune (design section 8).

Guarantees, on a local POSIX file system (rename within one folder is atomic, fsync is honest):

* A folder `snapshot_<N>` is complete: every file that its writers answered, nothing else, all
  of it on disk before the rename that publishes it, the manifest last. A crash at any point
  leaves either that folder or a `tmp_...` one.
* Publishing and unpublishing are both a rename of the same `tmp_...` folder: the first wins, the
  other finds nothing and says so. Who wants to know the outcome asks `find_published` after
  `discard`.
* Nothing that has been published changes: pruning renames the whole folder to `trash_...` first.
* A number is never used twice (`rl.snapshots.names`).

All functions are synchronous and may run at the same time in several processes. Not guaranteed:
anything on a file system without atomic rename, and the content of a snapshot between `verify`
and its use (loaders compare digests again).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from gym.durable import refusal_of_the_disk, sync_folder
from gym.protocol import StaleCheckpoint, WrittenFile
from rl.errors import (
    NoSnapshot,
    NotFound,
    PublishRefused,
    RestoreNotFinished,
    SnapshotDamaged,
    Unpublished,
)
from rl.messages import SnapshotPlace
from rl.snapshots import check as folder_check
from rl.snapshots import incarnations
from rl.snapshots.manifest import (
    MANIFEST,
    SnapshotManifest,
    damaged,
    read_key,
    read_manifest,
    verify_manifest,
)
from rl.snapshots.names import SNAPSHOT, TMP, JobFolder, is_of, number_of, snapshot_of


class Reserved(NamedTuple):
    """What `reserve` answers: names below the job's folder."""

    tmp: str
    snapshot: str


class Pruned(NamedTuple):
    """What `prune` has done: names of snapshots, newest first."""

    removed: list[str]
    kept: list[str]


class SnapshotFolder:
    """All snapshots of one job, on disk."""

    def __init__(self, config: SnapshotPlace) -> None:
        """Look at `<snapshot_root>/<job_id>`; nothing is created or read yet."""
        self._config = config
        self._names = JobFolder(config.job_folder)
        self.path = config.job_folder

    # --- a save -------------------------------------------------------------------------------

    def require_key(self) -> None:
        """Refuse a save that this process could not seal in the end.

        Raises:
            FolderError: A key is configured, and its file is empty or cannot be read.
        """
        read_key(self._config)

    def reserve(self, checkpoint_id: str, incarnation: int) -> Reserved:
        """Take the next number and make the unpublished folder with its three parts.

        What older checkpoints left unpublished is renamed to trash, and trash is removed. A
        newer one has a higher number and is let be: a slow call must not sweep what a later
        save has reserved meanwhile. Repeatable: the same id gets the same folder.

        Raises:
            Superseded: A newer incarnation exists.
            StaleCheckpoint: This checkpoint is published already.
            NoSpace, NotWritten: The folder cannot be written.
        """
        incarnations.require_newest(self.path, incarnation)
        if (published := self.find_published(checkpoint_id)) is not None:
            raise StaleCheckpoint(f"this checkpoint is published as {published}")
        try:
            tmp = self._names.tmp_of(checkpoint_id) or self._names.make_tmp(checkpoint_id)
            self._names.make_parts(tmp)
            self.sweep(below=number_of(tmp))
            self._names.empty_trash()
            self._names.remove_stray_files(below=number_of(tmp))
        except OSError as error:
            raise refusal_of_the_disk(error, participant=self._config.job_id) from error
        return Reserved(tmp, snapshot_of(number_of(tmp)))

    def publish(
        self, tmp: str, snapshot: str, manifest: SnapshotManifest, files: Iterable[WrittenFile]
    ) -> SnapshotManifest:
        """Check, sync and seal the unpublished folder, then rename it: from there it exists.

        Args:
            tmp: Name of the unpublished folder.
            snapshot: Name it gets; must be the manifest's.
            manifest: What the folder is; its `files` and seals are filled in here.
            files: Every file with bytes and sha256, as its writer answered it.

        Returns:
            The manifest on disk. Publishing again, also at the same time on another worker,
            recognises its own folder by the checkpoint id and answers the same.

        Raises:
            PublishRefused: A file is missing, too much, a symlink or not what its writer
                answered (named); or another checkpoint has this number.
            Unpublished: The folder is gone: compensation, a sweep or a restore won the rename.
            Superseded: A newer incarnation exists.
            NoSpace, NotWritten: The disk refuses the manifest or the rename.
        """
        done = self._published_as(snapshot, manifest.checkpoint_id)
        if done is not None:
            return done
        self._demand_fit(tmp, snapshot, manifest)
        incarnations.require_newest(self.path, manifest.incarnation)
        listed = sorted(files, key=lambda file: file.path)
        sealed = manifest.model_copy(update={"files": listed}).sealed(read_key(self._config))
        try:
            folder_check.check(self.path / tmp, listed, _refuse(tmp), sync=True)
            self._names.replace_file(tmp, MANIFEST, sealed.encoded())
            incarnations.require_newest(self.path, manifest.incarnation)
            os.rename(self.path / tmp, self.path / snapshot)
        except (OSError, PublishRefused) as error:
            # Renamed away meanwhile (then files seem to be missing): whoever did it decides, a
            # twin of this publish or the compensation.
            done = self._published_as(snapshot, manifest.checkpoint_id)
            if done is not None:
                return done
            if not (self.path / tmp).is_dir():
                raise Unpublished(
                    "the unpublished folder is gone: it was discarded", participant=tmp
                ) from None
            if isinstance(error, OSError):
                raise refusal_of_the_disk(error, participant=tmp) from error
            raise
        sync_folder(self.path)
        return sealed

    def find_published(self, checkpoint_id: str) -> str | None:
        """Name of the snapshot that holds this checkpoint id; None if it is not published.

        A snapshot whose manifest is damaged cannot answer and counts as another's.
        """
        for name in self.snapshots():
            manifest = self._readable(name)
            if manifest is not None and manifest.checkpoint_id == checkpoint_id:
                sync_folder(self.path)
                return name
        return None

    def discard(self, checkpoint_id: str) -> list[str]:
        """Rename what this checkpoint left unpublished to trash; repeatable.

        Returns:
            Names of the trash folders; empty if there was nothing, or its publish has won.
        """
        return self._names.to_trash(
            name for name in self._names.named(TMP) if is_of(name, checkpoint_id)
        )

    def sweep(self, below: int | None = None) -> list[str]:
        """Rename unpublished folders to trash; answers their trash names.

        Args:
            below: Only those with a lower number; None for all.
        """
        return self._names.to_trash(
            name for name in self._names.named(TMP) if below is None or number_of(name) < below
        )

    def make_room(self, incarnation: int) -> None:
        """Delete what no save needs any more: unpublished folders and trash.

        Only while no save is under way: what it has written would go too.

        Raises:
            Superseded: A newer incarnation exists.
        """
        incarnations.require_newest(self.path, incarnation)
        self.sweep()
        self._names.empty_trash()

    # --- looking ------------------------------------------------------------------------------

    def snapshots(self) -> list[str]:
        """Names of all published snapshots of all lines, newest first."""
        return self._names.named(SNAPSHOT)

    def on_current_line(self) -> list[str]:
        """Names of those that `latest` chooses from, newest first; with one that cannot say."""
        return self._on(incarnations.current_line(self.path))

    def manifest(self, name: str) -> SnapshotManifest:
        """A snapshot's manifest, checked against its own digest and, with a key, its HMAC.

        Raises:
            NotFound: There is no such snapshot.
            SnapshotDamaged: The manifest is missing, damaged or forged, or it is no folder.
        """
        folder = self._existing(name)
        if folder.is_symlink() or not folder.is_dir():
            raise damaged(name, ".", "it is not a folder")
        return verify_manifest(folder, self._config.job_id, read_key(self._config))

    def verify(self, name: str) -> SnapshotManifest:
        """Check everything: the manifest, and each file's presence, size and sha256.

        Raises:
            NotFound: There is no such snapshot.
            SnapshotDamaged: `details["file"]` names the file that is missing, too much, a
                symlink, another one, or unreadable; `manifest.json` if that is forged.
        """
        manifest = self.manifest(name)
        try:
            folder_check.check(self.path / name, manifest.files, _damage(name), sync=False)
        except OSError as error:
            raise damaged(name, ".", f"a folder cannot be listed ({error.strerror})") from error
        return manifest

    def candidates(self, wanted: str) -> list[str]:
        """Snapshots that a restore may take, in the order it tries them.

        Args:
            wanted: `latest` (the current line, newest first), the name of a folder, or the name
                given to a save (its newest snapshot); those are followed by the older ones of
                their own line.

        Returns:
            Folder names. One whose manifest does not say which line it belongs to is among
            them, so that it is named and skipped, never overlooked.

        Raises:
            NotFound: There is no such snapshot.
            NoSnapshot: The current line has none.
        """
        if wanted == "latest":
            found = self.on_current_line()
            if not found:
                raise NoSnapshot(
                    "the job has no snapshot on its current line; `turnpoint run` starts it from "
                    "the start, `turnpoint list` shows those of other lines"
                )
            return found
        name = wanted if SNAPSHOT.match(wanted) else self._named(wanted)
        self._existing(name)
        number = number_of(name)
        manifest = self._readable(name)
        if manifest is None:
            line = incarnations.current_line(self.path)
        else:
            line = incarnations.Line(self.path, manifest.incarnation, number)
        return [name] + [old for old in self._on(line) if number_of(old) < number]

    def newest_bytes(self) -> int:
        """Bytes of all files of the newest snapshot whose manifest can be read; 0 without one."""
        readable = (self._readable(name) for name in self.snapshots())
        return next((manifest.bytes for manifest in readable if manifest is not None), 0)

    def free_bytes(self) -> int:
        """Bytes that this user may still write below the snapshot root."""
        path = next(path for path in (self.path, *self.path.parents) if path.exists())
        return shutil.disk_usage(path).free

    # --- retention ----------------------------------------------------------------------------

    def prune(
        self, keep_latest_k: int, *, incarnation: int | None = None, other_lines: bool = False
    ) -> Pruned:
        """Delete old periodic snapshots of the current line.

        Kept: the newest `keep_latest_k` periodic ones of the line (so also the one that the
        current incarnation was restored from, until the line has a newer one); every named
        one; those of other lines, unless `other_lines`; those whose manifest is damaged (it
        cannot say that they have no name).

        Raises:
            NoSnapshot: The job has never run.
            Superseded: `incarnation` is given and not the newest.
            RestoreNotFinished: The newest incarnation has no origin yet: a restore that is
                under way may want any of them.
        """
        if keep_latest_k < 1:
            raise ValueError("keep_latest_k: at least 1")
        newest = incarnations.newest(self.path)
        if not newest:
            raise NoSnapshot(
                f"nothing to prune: job {self.path.name} has never run; `turnpoint run` starts it"
            )
        if incarnation is not None:
            incarnations.require_newest(self.path, incarnation)
        if incarnations.origin(self.path, newest) is None:
            raise RestoreNotFinished(
                f"incarnation {newest} has not named the snapshot it goes on from"
            )
        line = incarnations.current_line(self.path)
        periodic: list[str] = []
        foreign: list[str] = []
        for name in self.snapshots():
            manifest = self._readable(name)
            if manifest is not None and manifest.name is None:
                on_line = line.holds(manifest.incarnation, number_of(name))
                (periodic if on_line else foreign).append(name)
        doomed = periodic[keep_latest_k:] + (foreign if other_lines else [])
        removed = []
        for name in sorted(doomed, key=number_of):
            # A claim in between wants the choice that it finds: asked before each.
            incarnations.require_newest(self.path, newest)
            if self._names.to_trash([name]):
                removed.append(name)
        self._names.empty_trash()
        return Pruned(removed[::-1], self.snapshots())

    # --- private ------------------------------------------------------------------------------

    def _published_as(self, snapshot: str, checkpoint_id: str) -> SnapshotManifest | None:
        if not (self.path / snapshot).is_dir():
            return None
        manifest = read_manifest(self.path / snapshot)
        if manifest.checkpoint_id != checkpoint_id:
            raise PublishRefused(
                "another checkpoint has this number",
                participant=snapshot,
                details={"file": snapshot},
            )
        # The try that renamed it may have died before it synced the parent.
        sync_folder(self.path)
        return manifest

    def _demand_fit(self, tmp: str, snapshot: str, manifest: SnapshotManifest) -> None:
        fits = (
            SNAPSHOT.match(snapshot)
            and is_of(tmp, manifest.checkpoint_id)
            and tmp.startswith(f"tmp_{snapshot}-")
            and manifest.snapshot == snapshot
            and manifest.job_id == self._config.job_id
        )
        if not fits:
            raise PublishRefused(
                "folder, snapshot and manifest do not name the same checkpoint",
                participant=tmp,
                details={"file": MANIFEST},
            )

    def _existing(self, name: str) -> Path:
        folder = self.path / name
        if not SNAPSHOT.match(name) or not os.path.lexists(folder):
            raise self._not_found(name)
        return folder  # whatever it is: what is no folder of files is damaged, and not overlooked

    def _not_found(self, which: str) -> NotFound:
        return NotFound(
            f"there is no snapshot {which}; `turnpoint list` shows those there are",
            participant=self._config.job_id,
        )

    def _readable(self, name: str) -> SnapshotManifest | None:
        """A manifest for looking around; None where it is damaged or being pruned."""
        try:
            return read_manifest(self.path / name)
        except SnapshotDamaged:
            return None

    def _named(self, wanted: str) -> str:
        for name in self.snapshots():
            manifest = self._readable(name)
            if manifest is not None and manifest.name == wanted:
                return name
        raise self._not_found(f"named {wanted}")

    def _on(self, line: incarnations.Line) -> list[str]:
        found = []
        for name in self.snapshots():
            manifest = self._readable(name)
            if manifest is None or line.holds(manifest.incarnation, number_of(name)):
                found.append(name)
        return found


def _refuse(tmp: str) -> Callable[[str, str], PublishRefused]:
    return lambda file, reason: PublishRefused(
        f"{file}: {reason}", participant=tmp, details={"file": file, "reason": reason}
    )


def _damage(snapshot: str) -> Callable[[str, str], SnapshotDamaged]:
    return lambda file, reason: damaged(snapshot, file, reason)
