"""The published snapshots of a job: found by name, by line or by checkpoint; verified.

Nothing here changes the folder. All functions are synchronous, and may run while other processes
publish and prune. Not guaranteed: the content of a snapshot between `verify` and its use (loaders
compare digests again).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gym.durable import sync_folder
from rl.config import SnapshotPlace
from rl.errors import NoSnapshot, NotFound, SnapshotDamaged
from rl.snapshots import check as folder_check
from rl.snapshots import incarnations
from rl.snapshots.manifest import (
    SnapshotManifest,
    damaged,
    read_key,
    read_manifest,
    verify_manifest,
)
from rl.snapshots.names import SNAPSHOT, JobFolder, number_of


class PublishedSnapshots:
    """Snapshots of one job, of all its lines, in `<snapshot_root>/<job_id>`.

    Args:
        config: The job and its snapshot root; nothing is read or created yet.
    """

    def __init__(self, config: SnapshotPlace) -> None:
        self._config = config
        self.names = JobFolder(config.job_folder)
        self.path = config.job_folder

    def snapshots(self) -> list[str]:
        """Names of all published snapshots of all lines, newest first."""
        return self.names.named(SNAPSHOT)

    def on_current_line(self) -> list[str]:
        """Names that `latest` chooses from, newest first; damaged ones are among them."""
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
            folder_check.check(
                self.path / name,
                manifest.files,
                lambda file, reason: damaged(name, file, reason),
                sync=False,
            )
        except OSError as error:
            raise damaged(name, ".", f"a folder cannot be listed ({error.strerror})") from error
        return manifest

    def readable(self, name: str) -> SnapshotManifest | None:
        """A manifest checked by its own digest; None if it is damaged or being pruned."""
        try:
            return read_manifest(self.path / name)
        except SnapshotDamaged:
            return None

    def candidates(self, wanted: str) -> list[str]:
        """Snapshots that a restore may take, in the order it tries them.

        Args:
            wanted: `latest` (the current line, newest first), the name of a folder, or the name
                given to a save (its newest snapshot); those are followed by the older ones of
                their own line.

        Returns:
            Folder names. One whose manifest does not tell its line is among them, so that it is
            named and skipped, never overlooked.

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
        manifest = self.readable(name)
        if manifest is None:
            line = incarnations.current_line(self.path)
        else:
            line = incarnations.Line(self.path, manifest.incarnation, number)
        return [name] + [old for old in self._on(line) if number_of(old) < number]

    def newest_bytes(self) -> int:
        """Bytes of all files of the newest snapshot whose manifest can be read; 0 without one."""
        readable = (self.readable(name) for name in self.snapshots())
        return next((manifest.bytes for manifest in readable if manifest is not None), 0)

    def free_bytes(self) -> int:
        """Bytes that this user may still write below the snapshot root."""
        path = next(path for path in (self.path, *self.path.parents) if path.exists())
        return shutil.disk_usage(path).free

    def find_published(self, checkpoint_id: str) -> str | None:
        """Name of the snapshot that holds this checkpoint id; None if it is not published.

        A snapshot whose manifest is damaged cannot answer and counts as another's.
        """
        for name in self.snapshots():
            manifest = self.readable(name)
            if manifest is not None and manifest.checkpoint_id == checkpoint_id:
                sync_folder(self.path)
                return name
        return None

    def _existing(self, name: str) -> Path:
        folder = self.path / name
        if not SNAPSHOT.match(name) or not os.path.lexists(folder):
            raise self._not_found(name)
        return folder  # of any kind: one that is not a folder of files is damaged, not missing

    def _not_found(self, which: str) -> NotFound:
        return NotFound(
            f"there is no snapshot {which}; `turnpoint list` shows those there are",
            participant=self._config.job_id,
        )

    def _named(self, wanted: str) -> str:
        for name in self.snapshots():
            manifest = self.readable(name)
            if manifest is not None and manifest.name == wanted:
                return name
        raise self._not_found(f"named {wanted}")

    def _on(self, line: incarnations.Line) -> list[str]:
        found = []
        for name in self.snapshots():
            manifest = self.readable(name)
            if manifest is None or line.holds(manifest.incarnation, number_of(name)):
                found.append(name)
        return found
