"""Reserve, publish, discard: the guarantees without a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym.protocol import StaleCheckpoint
from rl.errors import (
    PublishRefused,
    Superseded,
    Unpublished,
)
from rl.snapshots import incarnations
from rl.snapshots.folder import Reserved, SnapshotFolder
from rl.snapshots.manifest import MANIFEST
from rl.snapshots.names import JobFolder
from tests.rl.folder_cases import (
    FIRST,
    SECOND,
    config_of,
    manifest_of,
    save,
    start_job,
    write_files,
)
from tests.rl.snapshots.damages import DAMAGES, Damage


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    config = config_of(tmp_path)
    start_job(config)
    return SnapshotFolder(config)


def _names(folder: SnapshotFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if path.name != "incarnations")


def test_reserving_makes_the_three_parts_and_a_repeat_finds_them(folder: SnapshotFolder) -> None:
    reserved = folder.reserve(FIRST, 1)
    assert reserved == Reserved("tmp_snapshot_000001-1f2e3d4c", "snapshot_000001")
    assert sorted(os.listdir(folder.path / reserved.tmp)) == ["data_plane", "gym", "rl"]
    (folder.path / reserved.tmp / "gym" / "kept").mkdir()
    assert folder.reserve(FIRST, 1) == reserved
    assert (folder.path / reserved.tmp / "gym" / "kept").is_dir()
    assert _names(folder) == [reserved.tmp]


def test_reserving_sweeps_what_others_left_and_never_uses_a_number_twice(
    folder: SnapshotFolder,
) -> None:
    folder.reserve(FIRST, 1)
    second = folder.reserve(SECOND, 1)
    assert second.snapshot == "snapshot_000002"
    assert _names(folder) == [second.tmp]
    (trash,) = folder.discard(SECOND)
    JobFolder(folder.path).empty_trash()
    assert _names(folder) == [trash], "it holds the highest number"
    assert trash.startswith("trash_snapshot_000002-")
    assert folder.reserve("cccccccc-3", 1).snapshot == "snapshot_000003"


def test_trash_names_end_in_a_fresh_uuid(folder: SnapshotFolder) -> None:
    trashed = []
    for _ in range(2):
        folder.reserve(FIRST, 1)
        trashed += folder.discard(FIRST)
    first, second = (name[-36:] for name in trashed)
    assert first != second and len(first.split("-")) == 5


def test_an_older_incarnation_reserves_and_publishes_nothing(folder: SnapshotFolder) -> None:
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    incarnations.claim(folder.path, {"run_id": "restore"})
    with pytest.raises(Superseded):
        folder.reserve(SECOND, 1)
    with pytest.raises(Superseded):
        folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, FIRST), files)
    assert folder.snapshots() == []


def test_publishing_twice_recognises_its_own_folder(folder: SnapshotFolder) -> None:
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    manifest = manifest_of(reserved, FIRST)
    published = folder.publish(reserved.tmp, reserved.snapshot, manifest, files)
    again = folder.publish(reserved.tmp, reserved.snapshot, manifest, files)
    assert again == published == folder.verify("snapshot_000001")
    assert folder.find_published(FIRST) == "snapshot_000001"
    assert folder.find_published(SECOND) is None
    assert folder.discard(FIRST) == []
    assert _names(folder) == ["snapshot_000001"]
    with pytest.raises(StaleCheckpoint):
        folder.reserve(FIRST, 1)


def test_a_save_that_fails_leaves_the_snapshot_before_as_it_was(folder: SnapshotFolder) -> None:
    """Invariant 2. Break: rl/snapshots/folder.py: sweep published folders too; seen red."""
    before = folder.path / save(folder, FIRST)
    content = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    reserved = folder.reserve(SECOND, 1)
    files = write_files(folder.path / reserved.tmp)
    (folder.path / reserved.tmp / files[0].path).unlink()
    with pytest.raises(PublishRefused):
        folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, SECOND), files)
    folder.discard(SECOND)
    assert folder.candidates("latest") == [before.name]
    folder.verify(before.name)
    assert content == {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}


def test_a_number_that_another_checkpoint_has_is_refused(folder: SnapshotFolder) -> None:
    save(folder, FIRST)
    reserved = Reserved("tmp_snapshot_000001-aaaabbbb", "snapshot_000001")
    with pytest.raises(PublishRefused, match="another checkpoint"):
        folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, SECOND), [])


def test_a_discarded_folder_cannot_be_published(folder: SnapshotFolder) -> None:
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    assert len(folder.discard(FIRST)) == 1
    with pytest.raises(Unpublished):
        folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, FIRST), files)
    assert folder.find_published(FIRST) is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_publish_refuses_what_its_writers_did_not_answer(
    folder: SnapshotFolder, damage: Damage
) -> None:
    """Invariant 1. Break: rl/snapshots/folder.py: publish without comparing the files; seen red."""
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    named = damage(folder.path / reserved.tmp, files)
    with pytest.raises(PublishRefused) as refused:
        folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, FIRST), files)
    assert refused.value.details["file"] == named
    assert folder.snapshots() == []
    assert not (folder.path / reserved.tmp / MANIFEST).exists()


def test_a_file_listed_twice_is_refused(folder: SnapshotFolder) -> None:
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    with pytest.raises(PublishRefused, match="twice"):
        folder.publish(
            reserved.tmp, reserved.snapshot, manifest_of(reserved, FIRST), [*files, files[0]]
        )


def test_a_manifest_of_another_folder_or_checkpoint_is_refused(folder: SnapshotFolder) -> None:
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    for manifest, snapshot in (
        (manifest_of(reserved, SECOND), reserved.snapshot),
        (manifest_of(reserved, FIRST), "snapshot_000009"),
        (manifest_of(reserved, FIRST).model_copy(update={"job_id": "job-2"}), reserved.snapshot),
    ):
        with pytest.raises(PublishRefused):
            folder.publish(reserved.tmp, snapshot, manifest, files)


def test_all_is_on_disk_before_the_rename_and_the_rename_before_it_answers(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = folder.reserve(FIRST, 1)
    files = write_files(folder.path / reserved.tmp)
    synced: list[int] = []
    at_rename: list[int] = []
    fsync, rename = os.fsync, os.rename

    def record_sync(fd: int) -> None:
        fsync(fd)
        synced.append(os.fstat(fd).st_ino)

    def record_rename(source: Path, target: Path) -> None:
        if target.name == reserved.snapshot:
            at_rename.extend(synced)
            synced.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, FIRST), files)
    published = folder.path / reserved.snapshot
    inside = {path.stat().st_ino for path in (published, *published.rglob("*"))}
    assert inside <= set(at_rename)
    assert at_rename[-1] == published.stat().st_ino, "the folder last, with the manifest's name"
    assert synced == [folder.path.stat().st_ino]
