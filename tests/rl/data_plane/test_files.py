"""Files of the data plane: synced and digested when saved, compared before they are loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import transfer_queue as tq

from gym.protocol import DigestMismatch
from rl.data_plane.files import save_files, verify_files
from rl.errors import DataPlaneLost, Unpublished


def write(target: Path) -> None:
    """Files as `tq.save_checkpoint` writes them."""
    (target / "simple_storage").mkdir(parents=True, exist_ok=True)
    (target / "controller_state.pkl").write_bytes(b"controller")
    (target / "simple_storage" / "su_0.pkl").write_bytes(b"unit")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp_snapshot_000001-abc"
    folder.mkdir()
    return folder


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    return lambda save: monkeypatch.setattr(tq, "save_checkpoint", save)


def test_every_file_and_folder_is_synced(
    base: Path, saving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    saving(write)
    synced: set[int] = set()
    fsync = os.fsync

    def recording(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recording)
    files = save_files(base)
    assert [file.path for file in files] == [
        "data_plane/controller_state.pkl",
        "data_plane/simple_storage/su_0.pkl",
    ]
    assert {path.stat().st_ino for path in (base, *base.rglob("*"))} == synced
    verify_files(base, files)


def test_a_folder_that_went_to_trash_is_not_left_recreated(
    base: Path, saving: Callable[..., None]
) -> None:
    trash = base.with_name("trash_snapshot_000001")

    def save(target: Path) -> None:
        base.rename(trash)
        write(target)

    saving(save)
    with pytest.raises(Unpublished):
        save_files(base)
    assert not base.exists()
    assert trash.is_dir()


def test_a_failed_save_is_a_typed_error_without_the_text_of_its_cause(
    base: Path, saving: Callable[..., None]
) -> None:
    def save(target: Path) -> None:
        raise RuntimeError("text of a row")

    saving(save)
    with pytest.raises(DataPlaneLost) as caught:
        save_files(base)
    assert "text of a row" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda own: (own / "controller_state.pkl").unlink(), "data_plane/controller_state.pkl"),
        (lambda own: (own / "controller_state.pkl").write_bytes(b"controllex"), "data_plane/co"),
        (lambda own: (own / "extra").write_bytes(b""), "data_plane/extra"),
        (
            lambda own: (
                (own / "simple_storage" / "su_0.pkl").rename(own.parent / "elsewhere"),
                (own / "simple_storage" / "su_0.pkl").symlink_to(own.parent / "elsewhere"),
            ),
            "data_plane/simple_storage/su_0.pkl",
        ),
    ],
)
def test_damage_is_named(
    base: Path, saving: Callable[..., None], damage: Callable[[Path], object], named: str
) -> None:
    saving(write)
    files = save_files(base)
    damage(base / "data_plane")
    with pytest.raises(DigestMismatch) as caught:
        verify_files(base, files)
    assert caught.value.details["file"].startswith(named)


def test_a_manifest_without_a_data_plane_is_refused(base: Path) -> None:
    with pytest.raises(DigestMismatch):
        verify_files(base, [])
