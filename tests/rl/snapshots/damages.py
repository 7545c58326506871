"""Ways to damage a checkpoint folder; each answers the path of the file that an error must name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gym.protocol import WrittenFile

Damage = Callable[[Path, list[WrittenFile]], str]


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


DAMAGES: list[Damage] = [
    _missing,
    _extra,
    _extra_at_top,
    _other_bytes,
    _shorter,
    _linked_file,
    _linked_folder,
    _pipe,
]
