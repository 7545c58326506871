"""Reserve, publish, discard, verify: what holds without a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym.protocol import StaleCheckpoint, WrittenFile
from rl.errors import (
    NoSnapshot,
    NotFound,
    PublishRefused,
    SnapshotDamaged,
    Superseded,
    Unpublished,
)
from rl.snapshots import incarnations
from rl.snapshots.folder import Reserved, SnapshotFolder
from rl.snapshots.manifest import MANIFEST
from rl.snapshots.names import JobFolder
from tests.rl.folder_cases import (
    CONTENT,
    FIRST,
    SECOND,
    config_of,
    manifest_of,
    save,
    start_job,
    write_files,
)


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


def _missing(tmp: Path, files: list[WrittenFile]) -> str:
    (tmp / files[1].path).unlink()
    return files[1].path


def _extra(tmp: Path, _files: list[WrittenFile]) -> str:
    (tmp / "gym/counter/.sessions.jsonl.1234.try").write_bytes(b"")
    return "gym/counter/.sessions.jsonl.1234.try"


def _extra_at_top(tmp: Path, _files: list[WrittenFile]) -> str:
    (tmp / "note.txt").write_bytes(b"")
    return "note.txt"


def _other_bytes(tmp: Path, files: list[WrittenFile]) -> str:
    data = bytearray((tmp / files[2].path).read_bytes())
    data[7] ^= 1
    (tmp / files[2].path).write_bytes(data)
    return files[2].path


def _shorter(tmp: Path, files: list[WrittenFile]) -> str:
    os.truncate(tmp / files[2].path, files[2].bytes - 1)
    return files[2].path


def _linked_file(tmp: Path, files: list[WrittenFile]) -> str:
    path = tmp / files[0].path
    path.rename(tmp.parent / "elsewhere")
    path.symlink_to(tmp.parent / "elsewhere")
    return files[0].path


def _linked_folder(tmp: Path, _files: list[WrittenFile]) -> str:
    (tmp / "gym/counter").rename(tmp.parent / "elsewhere")
    (tmp / "gym/counter").symlink_to(tmp.parent / "elsewhere")
    return "gym/counter"


def _pipe(tmp: Path, _files: list[WrittenFile]) -> str:
    os.mkfifo(tmp / "rl/pipe")
    return "rl/pipe"


DAMAGES = [
    _missing,
    _extra,
    _extra_at_top,
    _other_bytes,
    _shorter,
    _linked_file,
    _linked_folder,
    _pipe,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_publish_refuses_what_its_writers_did_not_answer(
    folder: SnapshotFolder, damage: object
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


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_the_damaged_file(folder: SnapshotFolder, damage: object) -> None:
    """Invariant 12. Break: rl/snapshots/check.py: compare sizes alone; seen red."""
    name = save(folder, FIRST)
    manifest = folder.verify(name)
    files = sorted(manifest.files, key=lambda file: list(CONTENT).index(file.path))
    named = damage(folder.path / name, files)
    with pytest.raises(SnapshotDamaged) as found:
        folder.verify(name)
    assert found.value.details["file"] == named


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
