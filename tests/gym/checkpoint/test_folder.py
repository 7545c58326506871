"""Checkpoint folders: real folders below the root, none made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.checkpoint.folder import CheckpointFolder
from gym.protocol import FolderOutsideRoot
from tests.gym.parts import checkpoint_folder


def test_only_real_folders_below_the_root_are_accepted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    folder = checkpoint_folder(root)
    outside = checkpoint_folder(tmp_path / "elsewhere")
    (root / "link").symlink_to(outside)
    (root / "inner").symlink_to(folder)
    (root / "file").write_text("")
    CheckpointFolder(root, str(folder))
    (tmp_path / "root-link").symlink_to(root)
    CheckpointFolder(tmp_path / "root-link", str(tmp_path / "root-link" / "job" / folder.name))
    for bad in (
        str(outside),
        str(root),
        str(root / "link"),
        str(root / "inner"),
        str(root / "job" / ".." / "job" / folder.name),
        str(root / "file"),
        str(root / "missing"),
        "relative",
        "/",
        "",
        "/nul\0byte",
        f"{root}-longer",
    ):
        with pytest.raises(FolderOutsideRoot):
            CheckpointFolder(root, bad)


def test_the_own_folder_is_no_symlink_and_only_inside_gym(tmp_path: Path) -> None:
    folder = checkpoint_folder(tmp_path)
    checked = CheckpointFolder(tmp_path, str(folder))
    (folder / "gym" / "evil").symlink_to(tmp_path)
    with pytest.raises(FolderOutsideRoot):
        checked.own("evil")
    (folder / "gym").rename(folder / "moved")
    with pytest.raises(FolderOutsideRoot):
        checked.own("fake")
    (folder / "gym").symlink_to(tmp_path)
    with pytest.raises(FolderOutsideRoot):
        checked.own("fake")


def test_a_folder_that_is_renamed_at_the_last_moment_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint_folder(tmp_path)
    checked = CheckpointFolder(tmp_path, str(folder))
    folder.rename(folder.with_name("trash_snapshot_000001"))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)  # it was there when it was looked at
    with pytest.raises(FolderOutsideRoot):
        checked.own("fake")
    assert not folder.exists()
