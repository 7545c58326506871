"""Durable files: complete and on disk under their name, or not there."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from gym.durable import create_exclusively, digest_of_file, durable_file, write_durably


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
