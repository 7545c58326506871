"""The job's folder of snapshots: reserve, publish, discard (design section 8).

Guarantees, on a local POSIX file system (rename within one folder is atomic, fsync is honest):

* A folder `snapshot_<N>` is complete: every file that its writers answered, nothing else, all
  of it on disk before the rename that publishes it, the manifest last. A crash at any point
  leaves either that folder or a `tmp_...` one.
* Publishing and unpublishing are both a rename of the same `tmp_...` folder: the first wins, the
  other finds nothing and says so. After `discard`, `find_published` tells the outcome.
* Nothing that has been published changes: `prune` renames the whole folder to `trash_...` first.
* A number is never used twice (`rl.snapshots.names`).

All functions are synchronous and may run at the same time in several processes. Not guaranteed:
anything on a file system without atomic rename.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from gym.durable import refusal_of_the_disk, sync_folder
from gym.protocol import StaleCheckpoint, WrittenFile
from rl.errors import PublishRefused, Unpublished
from rl.snapshots import check as folder_check
from rl.snapshots import incarnations
from rl.snapshots.manifest import MANIFEST, SnapshotManifest, read_key, read_manifest
from rl.snapshots.names import SNAPSHOT, TMP, is_of, number_of, snapshot_of
from rl.snapshots.published import PublishedSnapshots


class Reserved(NamedTuple):
    """Answer of `reserve`: names below the job's folder."""

    tmp: str
    snapshot: str


class SnapshotFolder(PublishedSnapshots):
    """All snapshots of one job, on disk, and what its saves have not published."""

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
            tmp = self.names.tmp_of(checkpoint_id) or self.names.make_tmp(checkpoint_id)
            self.names.make_parts(tmp)
            self.sweep(below=number_of(tmp))
            self.names.empty_trash()
            self.names.remove_stray_files(below=number_of(tmp))
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
        self._require_fit(tmp, snapshot, manifest)
        incarnations.require_newest(self.path, manifest.incarnation)
        listed = sorted(files, key=lambda file: file.path)
        sealed = manifest.model_copy(update={"files": listed}).sealed(read_key(self._config))
        try:
            folder_check.check(
                self.path / tmp,
                listed,
                lambda file, reason: _refused(tmp, file, reason),
                sync=True,
            )
            self.names.replace_file(tmp, MANIFEST, sealed.encoded())
            incarnations.require_newest(self.path, manifest.incarnation)
            os.rename(self.path / tmp, self.path / snapshot)
        except (OSError, PublishRefused) as error:
            # Renamed away meanwhile (then files seem to be missing): that rename decides: it
            # was a second try of this publish, or the compensation.
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

    def discard(self, checkpoint_id: str) -> list[str]:
        """Rename what this checkpoint left unpublished to trash; repeatable.

        Returns:
            Names of the trash folders; empty if there was nothing, or its publish has won.
        """
        return self.names.to_trash(
            name for name in self.names.named(TMP) if is_of(name, checkpoint_id)
        )

    def sweep(self, below: int | None = None) -> list[str]:
        """Rename unpublished folders to trash; answers their trash names.

        Args:
            below: Only those with a lower number; None for all.
        """
        return self.names.to_trash(
            name for name in self.names.named(TMP) if below is None or number_of(name) < below
        )

    def make_room(self, incarnation: int) -> None:
        """Delete what no save needs any more: unpublished folders and trash.

        Only while no save is under way: what it has written would go too.

        Raises:
            Superseded: A newer incarnation exists.
        """
        incarnations.require_newest(self.path, incarnation)
        self.sweep()
        self.names.empty_trash()

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

    def _require_fit(self, tmp: str, snapshot: str, manifest: SnapshotManifest) -> None:
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


def _refused(tmp: str, file: str, reason: str) -> PublishRefused:
    return PublishRefused(
        f"{file}: {reason}", participant=tmp, details={"file": file, "reason": reason}
    )
