"""Snapshots found by name, line or checkpoint, and verified."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl.errors import (
    NoSnapshot,
    NotFound,
    SnapshotDamaged,
)
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.manifest import MANIFEST
from tests.rl.folder_cases import (
    CONTENT,
    FIRST,
    SECOND,
    config_of,
    save,
    start_job,
)
from tests.rl.snapshots.damages import DAMAGES, Damage


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    config = config_of(tmp_path)
    start_job(config)
    return SnapshotFolder(config)


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_the_damaged_file(folder: SnapshotFolder, damage: Damage) -> None:
    """Invariant 12. Break: rl/snapshots/check.py: compare sizes alone; seen red."""
    name = save(folder, FIRST)
    manifest = folder.verify(name)
    files = sorted(manifest.files, key=lambda file: list(CONTENT).index(file.path))
    named = damage(folder.path / name, files)
    with pytest.raises(SnapshotDamaged) as found:
        folder.verify(name)
    assert found.value.details["file"] == named


def test_looking_for_what_is_not_there_says_so(folder: SnapshotFolder) -> None:
    with pytest.raises(NoSnapshot):
        folder.candidates("latest")
    for wanted in ("snapshot_000009", "before-lr-change", "../snapshot_000001"):
        with pytest.raises(NotFound):
            folder.candidates(wanted)
    with pytest.raises(NotFound):
        folder.verify("snapshot_000009")


def test_a_named_snapshot_is_found_by_its_newest_save(folder: SnapshotFolder) -> None:
    first = save(folder, FIRST, name="before")
    second = save(folder, SECOND, name="before")
    assert folder.candidates("before") == [second, first]


def test_a_snapshot_that_cannot_say_its_line_is_a_candidate_and_not_overlooked(
    folder: SnapshotFolder,
) -> None:
    first, second = save(folder, FIRST), save(folder, SECOND)
    (folder.path / second / MANIFEST).write_bytes(b"{}")
    assert folder.candidates("latest") == [second, first]
    assert folder.find_published(SECOND) is None


def test_newest_bytes_are_those_of_all_parts_of_the_newest_that_can_be_read(
    folder: SnapshotFolder,
) -> None:
    """Break: count `data_plane` and `rl` alone: the Gym servers' parts run out in the pause."""
    assert folder.newest_bytes() == 0
    save(folder, FIRST)
    of_all = sum(len(data) for data in CONTENT.values())
    assert folder.newest_bytes() == of_all > len(CONTENT["data_plane/unit_0/rows.pkl"])
    second = save(folder, SECOND)
    (folder.path / second / MANIFEST).write_bytes(b"{}")
    assert SnapshotFolder(config_of(folder.path.parents[1])).newest_bytes() == of_all


def test_free_bytes_are_those_of_the_disk_below_the_root(tmp_path: Path) -> None:
    folder = SnapshotFolder(config_of(tmp_path))
    assert not folder.path.exists()
    assert 0 < folder.free_bytes() <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
