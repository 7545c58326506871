"""Durable files, checkpoint folders and fences."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from gym.checkpoint.fences import Fences
from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.part_files import PartWriter, WriterStopped
from gym.durable import create_exclusively, digest_of_file, durable_file, write_durably
from gym.protocol import DigestMismatch, FolderOutsideRoot, Identity, StaleAttempt, WrittenFile
from tests.gym.parts import checkpoint_folder


def test_a_durable_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    at = tmp_path / "a"
    with pytest.raises(RuntimeError), durable_file(at) as file:
        file.write(b"half")
        assert not at.exists()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    write_durably(at, b"whole")
    assert digest_of_file(at) == (5, hashlib.sha256(b"whole").hexdigest())
    with pytest.raises(RuntimeError), durable_file(at) as file:
        raise RuntimeError
    assert at.read_bytes() == b"whole"


def test_of_two_exclusive_creators_the_first_wins(tmp_path: Path) -> None:
    at = tmp_path / "1.json"
    create_exclusively(at, b"first")
    with pytest.raises(FileExistsError):
        create_exclusively(at, b"second")
    assert at.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]


def test_many_exclusive_creators_leave_one_whole_file(tmp_path: Path) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        try:
            create_exclusively(tmp_path / "1.json", str(number).encode() * 1000)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "1.json").read_bytes() == str(won[0]).encode() * 1000


def test_files_are_synced_before_they_get_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "link")}
    for name, function in real.items():

        def spy(*args: object, _name: str = name, _real: object = function) -> None:
            order.append(_name)
            _real(*args)  # type: ignore[operator]

        monkeypatch.setattr(os, name, spy)
    write_durably(tmp_path / "a", b"x")
    create_exclusively(tmp_path / "b", b"x")
    assert order == ["fsync", "rename", "fsync", "fsync", "link", "fsync"]


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


def test_a_stopped_writer_writes_nothing_more(tmp_path: Path) -> None:
    folder = checkpoint_folder(tmp_path)
    stop = threading.Event()
    writer = PartWriter(CheckpointFolder(tmp_path, str(folder)), "fake", stop)

    def records() -> object:
        yield {"a": 1}
        stop.set()
        yield {"a": 2}

    with pytest.raises(WriterStopped):
        writer.jsonl("part.jsonl", records())  # type: ignore[arg-type]
    with pytest.raises(WriterStopped):
        writer.bytes("more", b"")
    assert list((folder / "gym/fake").iterdir()) == []
    assert writer.files == []


def test_a_parquet_file_has_the_digest_that_its_record_says(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = checkpoint_folder(tmp_path)
    checked = CheckpointFolder(tmp_path, str(folder))
    writer = PartWriter(checked, "fake", threading.Event())
    table = pa.table({"a": list(range(1000))})
    file = writer.parquet("rows.parquet", table)
    assert file.records == 1000
    assert pq.read_table(writer.read_reference(file)).equals(table)
    wrong = WrittenFile(path=file.path, bytes=file.bytes, sha256="0" * 64)
    with pytest.raises(DigestMismatch):
        writer.read_reference(wrong)


def test_fences_refuse_older_runs_and_tell_the_first_call_of_a_newer_one() -> None:
    fences = Fences()

    def run(attempt: int) -> Identity:
        return Identity(incarnation=1, rollout_id="p0_g0", attempt=attempt)

    assert not fences.admit(run(1))
    assert not fences.admit(run(1))
    with pytest.raises(StaleAttempt):
        fences.admit(run(0))
    assert fences.admit(run(3))
    assert not fences.admit(run(3))
    fences.raise_to("p0_g0", 2)
    assert fences.newest("p0_g0") == 3
    fences.require_current(run(9))
    assert fences.newest("p0_g0") == 3
    fences.forget(["p0_g0", "never-seen"])
    assert not fences.admit(run(0))
