"""A checkpoint folder as one server may use it (design sections 4 and 6, folders).

Guarantees: every path handed out lies below the configured snapshot root, with no symlink on
the way from the root; a server creates nothing but its own folder, inside a checkpoint folder
that exists already (one that was renamed to trash is never created anew).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gym.durable import digest_of_file, sync_folder
from gym.protocol import INNER_FILES_FOLDER, DigestMismatch, FolderOutsideRoot, WrittenFile


class CheckpointFolder:
    """One checkpoint folder below the snapshot root.

    Args:
        root: The snapshot root.
        folder: Absolute path of the checkpoint folder.

    Raises:
        FolderOutsideRoot: It is not an existing folder below the root, or a symlink is on the
            way.
    """

    def __init__(self, root: Path, folder: str) -> None:
        self.path = Path(folder)
        self._require_below(root)

    def _require_below(self, root: Path) -> None:
        real_root = root.resolve()
        try:
            real = self.path.resolve(strict=True)
        except (OSError, ValueError):  # not there, or not a path at all (a null byte)
            real = real_root
        if real_root not in real.parents or not real.is_dir():
            raise FolderOutsideRoot(
                "the checkpoint folder is not an existing folder below the snapshot root"
            )
        # Below the root the path must be spelled out; the root itself may be reached through a
        # symlink (`/tmp` is one on some systems).
        bases = [base for base in (root, real_root) if base in self.path.parents]
        if not any(real_root / self.path.relative_to(base) == real for base in bases):
            raise FolderOutsideRoot("a symlink or `..` leads to the checkpoint folder")

    def own(self, server: str) -> Path:
        """`<folder>/gym/<server>`, created if it is missing; its parents are never created.

        Raises:
            FolderOutsideRoot: The checkpoint folder is gone, or a symlink is in the way.
        """
        parent = self.path / INNER_FILES_FOLDER
        own = parent / server
        if parent.is_symlink() or not parent.is_dir() or own.is_symlink():
            raise FolderOutsideRoot(
                f"no `{INNER_FILES_FOLDER}` folder to write in", participant=server
            )
        try:
            own.mkdir(exist_ok=True)
            sync_folder(parent)
        except FileNotFoundError:
            raise FolderOutsideRoot("the checkpoint folder is gone", participant=server) from None
        return own

    def locate(self, file: WrittenFile, *, server: str | None = None) -> Path:
        """Path of a recorded file.

        Args:
            file: The record; its path is relative to this folder.
            server: If given, the file must lie in this server's own folder.

        Raises:
            FolderOutsideRoot: The path leads elsewhere.
        """
        parts = PurePosixPath(file.path).parts
        home = (INNER_FILES_FOLDER,) if server is None else (INNER_FILES_FOLDER, server)
        if ".." in parts or parts[: len(home)] != home or len(parts) <= len(home):
            raise FolderOutsideRoot(
                f"not a file of {'/'.join(home)}", details={"file": file.path}, participant=server
            )
        at = self.path.joinpath(*parts)
        if any(parent.is_symlink() for parent in (at, *at.parents[: len(parts) - 1])):
            raise FolderOutsideRoot(
                "a symlink leads to the file", details={"file": file.path}, participant=server
            )
        return at

    def verified(self, file: WrittenFile, *, server: str | None = None) -> Path:
        """Like `locate`, after size and digest have been compared. Reads the file: use a thread.

        Raises:
            FolderOutsideRoot: The path leads elsewhere.
            DigestMismatch: The file is missing or damaged; it is named.
        """
        at = self.locate(file, server=server)
        try:
            found = digest_of_file(at)
        except OSError as error:
            raise DigestMismatch(
                f"{file.path} cannot be read ({type(error).__name__})",
                details={"file": file.path},
                participant=server,
            ) from None
        if found != (file.bytes, file.sha256):
            raise DigestMismatch(
                f"{file.path} is not the file that was written",
                details={"file": file.path, "bytes": found[0], "expected_bytes": file.bytes},
                participant=server,
            )
        return at
