"""A disk without space on the RL side: typed, nothing published, and room is made again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import transfer_queue as tq

from gym.protocol import NoSpace, NotWritten
from rl.data_plane.files import save_files
from rl.errors import DataPlaneLost, Superseded
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from tests.rl.fakes import World, until
from tests.rl.folder_cases import (
    FIRST,
    SECOND,
    config_of,
    manifest_of,
    save,
    start_job,
    write_files,
)

A = "aaaaaaaa-1"


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    config = config_of(tmp_path)
    start_job(config)
    return SnapshotFolder(config)


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_publish_on_a_full_disk_is_typed_and_leaves_the_snapshot_before(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Break: rl/snapshots/folder.py: let the OSError rise; Temporal repeats it, all paused."""
    save(folder, FIRST)
    reserved = folder.reserve(SECOND, 1)
    files = write_files(folder.path / reserved.tmp)
    with monkeypatch.context() as patch:
        patch.setattr(os, step, _full)
        with pytest.raises(NoSpace) as caught:
            folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, SECOND), files)
    assert not caught.value.retryable
    assert folder.snapshots() == ["snapshot_000001"]
    folder.verify("snapshot_000001")
    folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, SECOND), files)
    folder.verify("snapshot_000002")


def test_a_full_disk_refuses_to_reserve_and_to_claim(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(NoSpace, match="free space below the snapshot root"):
            folder.reserve(FIRST, 1)
        with pytest.raises(NoSpace):
            incarnations.claim(folder.path, {"run_id": "other"})
    assert incarnations.newest(folder.path) == 1
    folder.reserve(FIRST, 1)


def test_a_folder_that_may_not_be_written_is_told_apart_from_a_full_one(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", read_only)
    with pytest.raises(NotWritten, match="Read-only file system") as caught:
        folder.reserve(FIRST, 1)
    assert caught.value.code == "not_written"


def test_the_space_of_a_failed_save_is_given_back_and_its_number_is_not(
    folder: SnapshotFolder,
) -> None:
    """Break: rl/snapshots/names.py: keep the content of the trash with the highest number."""
    save(folder, FIRST)
    reserved = folder.reserve(SECOND, 1)
    write_files(folder.path / reserved.tmp)
    folder.discard(SECOND)
    folder.make_room(1)
    left = [path for path in folder.path.rglob("trash_*/**/*") if path.is_file()]
    assert left == []
    assert folder.verify("snapshot_000001")
    assert folder.reserve("cccccccc-3", 1).snapshot == "snapshot_000003"


def test_a_dead_incarnation_makes_no_room(folder: SnapshotFolder) -> None:
    start_job(config_of(folder.path.parents[1]))
    reserved = folder.reserve(FIRST, 2)
    with pytest.raises(Superseded):
        folder.make_room(1)
    assert (folder.path / reserved.tmp).is_dir()


async def test_what_a_failed_save_left_does_not_refuse_the_next(tmp_path: Path) -> None:
    """Break: rl/controller/preconditions.py: measure the free space only once."""
    world = World(tmp_path)
    await world.start()
    world.folder.free, world.folder.left_over = 1000, 0
    refused = await world.controller.saves.begin(A, None)
    assert refused.refusal == "no_space" and "1000 bytes are free" in (refused.reason or "")
    assert world.controller.job.admission.is_open
    world.folder.left_over = 1 << 30
    assert (await world.controller.saves.begin(A, None)).agreed


async def test_the_newest_snapshot_says_how_much_is_needed_also_after_a_restore(
    tmp_path: Path,
) -> None:
    """Break: rl/controller/preconditions.py: use the size of this controller's own last save."""
    world = World(tmp_path)
    await world.start()
    world.folder.newest = 20 << 20
    need = 2 * world.folder.newest
    world.folder.free = need - 1
    refused = await world.controller.saves.begin(A, None)
    assert refused.refusal == "no_space"
    assert f"{need - 1} bytes are free" in (refused.reason or "")
    assert f"{need} are needed" in (refused.reason or "")
    world.folder.free = need
    assert (await world.controller.saves.begin(A, None)).agreed


async def test_a_full_disk_fails_the_cut_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.start()
    begun = await world.controller.saves.begin(A, None)
    await world.controller.saves.close_admission(A, 1)
    with monkeypatch.context() as patch:
        patch.setattr("gym.durable.os.write", _full)
        with pytest.raises(NoSpace, match=r"loader\.json: No space left") as caught:
            await world.controller.saves.cut(A, begun.folder, 5)
    assert caught.value.participant == "SingleController"
    world.controller.saves.resume(A, None)
    assert world.controller.job.admission.is_open
    await until(lambda: world.folder.discarded == [A])


@pytest.mark.parametrize("nested", [False, True])
def test_a_full_disk_behind_transfer_queue_is_told_from_a_lost_data_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    def saving(target: Path) -> None:
        try:
            _full()
        except OSError as error:
            if not nested:
                raise
            raise RuntimeError(f"a storage unit failed: {error}") from None

    monkeypatch.setattr(tq, "save_checkpoint", saving)
    with pytest.raises(NoSpace, match="data_plane: No space left"):
        save_files(tmp_path)

    def lost(target: Path) -> None:
        raise RuntimeError("the controller has gone")

    monkeypatch.setattr(tq, "save_checkpoint", lost)
    with pytest.raises(DataPlaneLost):
        save_files(tmp_path)
