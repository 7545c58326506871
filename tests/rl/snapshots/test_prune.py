"""Snapshots that a prune keeps, and those that it deletes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl.errors import NoSnapshot, RestoreNotFinished, Superseded
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.manifest import MANIFEST
from rl.snapshots.prune import prune
from tests.rl.folder_cases import config_of, save, start_job


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    return SnapshotFolder(config_of(tmp_path))


def _start(folder: SnapshotFolder, snapshot: str | None = None) -> int:
    return start_job(folder._config, snapshot)


def _saves(folder: SnapshotFolder, numbers: range, *, incarnation: int = 1) -> None:
    for number in numbers:
        assert save(folder, f"{number:08d}", incarnation=incarnation) == f"snapshot_{number:06d}"


def test_the_newest_periodic_ones_are_kept_and_all_named_ones(folder: SnapshotFolder) -> None:
    _start(folder)
    save(folder, "aaaaaaaa", name="start")
    _saves(folder, range(2, 6))
    pruned = prune(folder, 2, incarnation=1)
    assert pruned.removed == ["snapshot_000003", "snapshot_000002"]
    assert pruned.kept == ["snapshot_000005", "snapshot_000004", "snapshot_000001"]
    assert pruned.kept == folder.snapshots()
    assert prune(folder, 2) == ([], pruned.kept)
    assert not [name for name in os.listdir(folder.path) if name.startswith("trash_")]


def test_named_ones_do_not_count_among_the_kept_k(folder: SnapshotFolder) -> None:
    _start(folder)
    _saves(folder, range(1, 3))
    save(folder, "aaaaaaaa", name="three")
    save(folder, "bbbbbbbb", name="four")
    assert prune(folder, 2).removed == []


def test_the_one_restored_from_stays_until_the_line_has_a_newer_one(
    folder: SnapshotFolder,
) -> None:
    _start(folder)
    _saves(folder, range(1, 4))
    _start(folder, "snapshot_000002")
    assert prune(folder, 1).removed == ["snapshot_000001"]
    assert "snapshot_000002" in folder.snapshots()
    _saves(folder, range(4, 5), incarnation=2)
    assert prune(folder, 1).removed == ["snapshot_000002"]


def test_other_lines_stay_until_they_are_asked_for(folder: SnapshotFolder) -> None:
    _start(folder)
    _saves(folder, range(1, 3))
    save(folder, "aaaaaaaa", name="never")
    _start(folder)
    _saves(folder, range(4, 7), incarnation=2)
    assert prune(folder, 1).removed == ["snapshot_000005", "snapshot_000004"]
    assert folder.snapshots()[-3:] == ["snapshot_000003", "snapshot_000002", "snapshot_000001"]
    assert prune(folder, 1, other_lines=True).removed == ["snapshot_000002", "snapshot_000001"]
    assert folder.snapshots() == ["snapshot_000006", "snapshot_000003"]


def test_a_snapshot_that_cannot_say_that_it_has_no_name_is_kept(folder: SnapshotFolder) -> None:
    _start(folder)
    _saves(folder, range(1, 5))
    (folder.path / "snapshot_000001" / MANIFEST).write_bytes(b"?")
    assert prune(folder, 1, other_lines=True).removed == ["snapshot_000003", "snapshot_000002"]
    assert folder.snapshots() == ["snapshot_000004", "snapshot_000001"]


def test_nothing_is_pruned_for_an_older_incarnation_or_during_a_restore(
    folder: SnapshotFolder,
) -> None:
    _start(folder)
    _saves(folder, range(1, 4))
    incarnations.claim(folder.path, {"run_id": "restore"})
    with pytest.raises(Superseded):
        prune(folder, 1, incarnation=1)
    with pytest.raises(RestoreNotFinished):
        prune(folder, 1)
    assert len(folder.snapshots()) == 3
    with pytest.raises(ValueError, match="keep_latest_k"):
        prune(folder, 0)


def test_of_a_job_that_never_ran_there_is_nothing_to_prune(folder: SnapshotFolder) -> None:
    """Break: say that incarnation 0 has not named its origin."""
    with pytest.raises(NoSnapshot, match=r"nothing to prune: .* never run; `turnpoint run`"):
        prune(folder, 1)


def test_numbers_go_on_above_what_prune_deleted(folder: SnapshotFolder) -> None:
    _start(folder)
    _saves(folder, range(1, 3))
    _start(folder, "snapshot_000001")
    assert prune(folder, 1, other_lines=True).removed == ["snapshot_000002"]
    _saves(folder, range(3, 4), incarnation=2)


def test_of_other_lines_trash_only_the_folder_that_holds_the_highest_number_stays(
    folder: SnapshotFolder,
) -> None:
    """Break: keep all trash above the snapshots that are left, and their space with it."""
    _start(folder)
    _saves(folder, range(1, 5))
    _start(folder, "snapshot_000001")
    removed = prune(folder, 1, other_lines=True).removed
    assert removed == ["snapshot_000004", "snapshot_000003", "snapshot_000002"]
    trash = [name for name in os.listdir(folder.path) if name.startswith("trash_")]
    assert [name.rpartition("_")[2][:6] for name in trash] == ["000004"]
    _saves(folder, range(5, 6), incarnation=2)


def test_a_snapshot_that_was_moved_away_is_neither_counted_nor_deleted_nor_in_the_way(
    folder: SnapshotFolder, tmp_path: Path
) -> None:
    """Break: rl/snapshots/manifest.py: follow a symlink.

    Its trash cannot be removed, nor anything saved.
    """
    _start(folder)
    _saves(folder, range(1, 4))
    moved = folder.path / "snapshot_000002"
    moved.rename(tmp_path / "kept")
    moved.symlink_to(tmp_path / "kept")
    assert prune(folder, 1).removed == ["snapshot_000001"]
    assert moved.is_symlink() and (tmp_path / "kept" / "manifest.json").is_file()
    _saves(folder, range(4, 5))


@pytest.mark.parametrize("number", [1, 9])
def test_trash_that_is_no_folder_stops_no_prune_and_is_not_followed(
    folder: SnapshotFolder, tmp_path: Path, number: int
) -> None:
    """Break: rl/snapshots/names.py: `rmtree` whatever is there, or empty what it leads to."""
    _start(folder)
    _saves(folder, range(1, 4))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"")
    (folder.path / f"trash_snapshot_{number:06d}-link").symlink_to(tmp_path / "outside")
    (folder.path / f"trash_snapshot_{number:06d}-file").write_bytes(b"")
    folder.make_room(1)
    left = [name for name in os.listdir(folder.path) if name.startswith("trash_")]
    assert len(left) == (0 if number == 1 else 2)
    assert (tmp_path / "outside" / "file").exists()
