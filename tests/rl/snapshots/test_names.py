"""Names in the job's folder, and numbers that are never used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.snapshots.names import SNAPSHOT, TRASH, JobFolder, is_of, number_of, snapshot_of

ID = "1f2e3d4c-0000"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("snapshot_000007", 7),
        ("snapshot_1234567", 1_234_567),
        ("tmp_snapshot_000008-1f2e3d4c", 8),
        ("trash_snapshot_000003-a", 3),
    ],
)
def test_a_name_has_its_number(name: str, number: int) -> None:
    assert number_of(name) == number


@pytest.mark.parametrize("name", ["snapshot_1", "incarnations", "tmp_snapshot_000001", "x"])
def test_other_names_have_none(name: str) -> None:
    with pytest.raises(ValueError):
        number_of(name)


def test_an_unpublished_folder_belongs_to_one_checkpoint() -> None:
    assert is_of("tmp_snapshot_000008-1f2e3d4c", ID)
    assert not is_of("tmp_snapshot_000008-1f2e3d4", ID)
    assert not is_of("snapshot_000008", ID)


def test_a_new_number_is_above_all_that_are_or_were_there(tmp_path: Path) -> None:
    """Break: rl/snapshots/names.py: leave trash out of the numbers that are taken."""
    folder = JobFolder(tmp_path)
    assert folder.make_tmp(ID) == "tmp_snapshot_000001-1f2e3d4c"
    (trash,) = folder.to_trash(["tmp_snapshot_000001-1f2e3d4c", "tmp_snapshot_000009-gone"])
    folder.empty_trash()
    assert folder.named(TRASH) == [trash], "the highest number stays taken"
    assert folder.make_tmp("22222222").startswith("tmp_snapshot_000002-")
    folder.empty_trash()
    assert folder.named(TRASH) == []


def test_names_are_listed_highest_first_and_nothing_of_a_missing_folder(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        (tmp_path / snapshot_of(number)).mkdir()
    (tmp_path / "note").touch()
    assert JobFolder(tmp_path).named(SNAPSHOT) == [snapshot_of(n) for n in (10, 2, 1)]
    assert JobFolder(tmp_path / "gone").named(SNAPSHOT) == []


def test_a_file_of_a_dead_try_is_removed_below_a_number(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    for number in (1, 2):
        (tmp_path / f"trash_file_{number:06d}-x").touch()
    folder.remove_stray_files(below=2)
    assert [path.name for path in tmp_path.iterdir()] == ["trash_file_000002-x"]
