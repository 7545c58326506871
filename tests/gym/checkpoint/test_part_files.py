"""The files of a part: stopped between records, and recorded with their digest."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.part_files import PartWriter, WriterStopped
from gym.protocol import DigestMismatch, WrittenFile
from tests.gym.parts import checkpoint_folder


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
