"""A folder compared with the files that its writers answered."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gym.protocol import DigestMismatch, TurnpointError, WrittenFile
from rl.snapshots.check import check, verified_bytes
from tests.rl.snapshots.damages import DAMAGES, Damage

CONTENT = {
    "gym/counter/sessions.jsonl": b"sessions",
    "rl/loader.json": b"{}",
    "data_plane/unit_0/rows.pkl": b"rows of a unit",
}


def _problem(file: str, reason: str) -> TurnpointError:
    return TurnpointError(reason, details={"file": file})


@pytest.fixture
def files(tmp_path: Path) -> list[WrittenFile]:
    listed = []
    for path, data in CONTENT.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        listed.append(WrittenFile(path=path, bytes=len(data), sha256=sha256))
    return listed


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_first_file_that_differs_is_named(
    tmp_path: Path, files: list[WrittenFile], damage: Damage
) -> None:
    """Break: rl/snapshots/check.py: compare sizes alone."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for part in ("gym", "rl", "data_plane"):
        (tmp_path / part).rename(folder / part)
    check(folder, files, _problem, sync=False)
    named = damage(folder, files)
    with pytest.raises(TurnpointError) as found:
        check(folder, files, _problem, sync=False)
    assert found.value.details["file"] == named


@pytest.mark.parametrize("path", ["manifest.json", "../token", "rl/loader.json"])
def test_a_path_that_cannot_be_listed_is_refused(
    tmp_path: Path, files: list[WrittenFile], path: str
) -> None:
    with pytest.raises(TurnpointError, match="listed"):
        check(tmp_path, [*files, files[0].model_copy(update={"path": path})], _problem, sync=False)


def test_with_sync_every_file_and_folder_is_on_disk(
    tmp_path: Path, files: list[WrittenFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def recording(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recording)
    check(tmp_path, files, _problem, sync=True)
    assert synced == {path.stat().st_ino for path in (tmp_path, *tmp_path.rglob("*"))}


def test_verified_bytes_are_those_that_were_written(
    tmp_path: Path, files: list[WrittenFile]
) -> None:
    loader = files[1]
    assert verified_bytes(tmp_path, loader.path, loader) == b"{}"
    with pytest.raises(DigestMismatch, match="not in the manifest"):
        verified_bytes(tmp_path, loader.path, None)
    (tmp_path / loader.path).write_bytes(b"[]")
    with pytest.raises(DigestMismatch, match="not the file that was written"):
        verified_bytes(tmp_path, loader.path, loader)
    (tmp_path / loader.path).unlink()
    with pytest.raises(DigestMismatch, match="cannot be read"):
        verified_bytes(tmp_path, loader.path, loader)
