"""The manifest finds damage without a key, and forgery with one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from gym.protocol import canonical_json, digest_of
from rl.errors import FolderError, SnapshotDamaged
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.manifest import MANIFEST, read_key, read_manifest, verify_manifest
from tests.rl.folder_cases import FIRST, config_of, save, start_job


def _publish(root: Path, key: bytes | None) -> tuple[SnapshotFolder, Path]:
    config = config_of(root, key=key)
    start_job(config)
    folder = SnapshotFolder(config)
    return folder, folder.path / save(folder, FIRST)


def _forge(snapshot: Path, *, keep_hmac: bool) -> None:
    """Change a file and the manifest with it, as a writer without the key can."""
    target = snapshot / "rl/loader.json"
    target.write_bytes(b"[]")
    body = json.loads((snapshot / MANIFEST).read_bytes())
    for file in body["files"]:
        if file["path"] == "rl/loader.json":
            file["sha256"] = hashlib.sha256(b"[]").hexdigest()
    _seal(snapshot, body, keep_hmac=keep_hmac)


def _seal(snapshot: Path, body: dict[str, object], *, keep_hmac: bool = True) -> None:
    bare = {name: value for name, value in body.items() if name not in ("sha256", "hmac")}
    body = {**bare, "sha256": digest_of(bare), "hmac": body["hmac"] if keep_hmac else None}
    (snapshot / MANIFEST).write_bytes(canonical_json(body))


@pytest.mark.parametrize("key", [None, b"secret"])
def test_a_flipped_bit_anywhere_in_the_manifest_is_found(tmp_path: Path, key: bytes | None) -> None:
    folder, snapshot = _publish(tmp_path, key)
    raw = (snapshot / MANIFEST).read_bytes()
    folder.verify(snapshot.name)
    for place in range(0, len(raw), 11):
        broken = bytearray(raw)
        broken[place] ^= 4
        (snapshot / MANIFEST).write_bytes(broken)
        with pytest.raises(SnapshotDamaged) as found:
            folder.verify(snapshot.name)
        assert found.value.details["file"] == MANIFEST, place


@pytest.mark.parametrize("change", [b"", b" ", b"\n", b"{}", b"[]", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_not_canonical_json_of_one_is_damaged(
    tmp_path: Path, change: bytes
) -> None:
    folder, snapshot = _publish(tmp_path, None)
    raw = (snapshot / MANIFEST).read_bytes()
    (snapshot / MANIFEST).write_bytes(raw + change if change.isspace() else change)
    with pytest.raises(SnapshotDamaged):
        folder.verify(snapshot.name)


@pytest.mark.parametrize("keep_hmac", [True, False])
def test_with_a_key_a_forged_snapshot_is_refused_and_the_manifest_named(
    tmp_path: Path, keep_hmac: bool
) -> None:
    """Invariant 12. Break: rl/snapshots/manifest.py: do not compare the HMAC; seen red."""
    folder, snapshot = _publish(tmp_path, b"secret")
    _forge(snapshot, keep_hmac=keep_hmac)
    read_manifest(snapshot)  # its digests agree: only the key tells
    with pytest.raises(SnapshotDamaged, match="HMAC") as found:
        folder.verify(snapshot.name)
    assert found.value.details["file"] == MANIFEST


def test_another_key_is_another_hmac(tmp_path: Path) -> None:
    folder, snapshot = _publish(tmp_path, b"secret")
    assert folder.verify(snapshot.name).hmac is not None
    with pytest.raises(SnapshotDamaged, match="HMAC"):
        verify_manifest(snapshot, "job-1", b"another")


def test_a_snapshot_made_without_a_key_is_not_accepted_with_one(tmp_path: Path) -> None:
    folder, snapshot = _publish(tmp_path, None)
    assert folder.verify(snapshot.name).hmac is None
    with pytest.raises(SnapshotDamaged, match="no HMAC"):
        verify_manifest(snapshot, "job-1", b"secret")


def test_without_a_key_a_signed_snapshot_is_checked_by_digest(tmp_path: Path) -> None:
    _, snapshot = _publish(tmp_path, b"secret")
    verify_manifest(snapshot, "job-1", None)


def test_a_manifest_that_was_moved_to_another_folder_or_job_is_refused(tmp_path: Path) -> None:
    folder, snapshot = _publish(tmp_path, b"secret")
    shutil.copytree(snapshot, folder.path / "snapshot_000009")
    with pytest.raises(SnapshotDamaged, match="snapshot_000001"):
        folder.verify("snapshot_000009")
    with pytest.raises(SnapshotDamaged, match="another job"):
        verify_manifest(snapshot, "job-2", b"secret")


def test_an_older_manifest_without_a_later_optional_field_keeps_its_digest(tmp_path: Path) -> None:
    folder, snapshot = _publish(tmp_path, None)
    body = json.loads((snapshot / MANIFEST).read_bytes())
    del body["trainer_anchor"]
    _seal(snapshot, body)
    assert folder.verify(snapshot.name).trainer_anchor == "bootstrap"


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Break: rl/snapshots/manifest.py: read it without `read_secret_file`."""
    config = config_of(tmp_path, key=b"s3cret")
    (tmp_path / "snapshot.key").chmod(0o640)
    with pytest.raises(FolderError, match=r"snapshot_key_file: .* mode 0640") as caught:
        read_key(config)
    assert "s3cret" not in str(caught.value)


def test_a_key_file_that_is_empty_or_missing_is_named_and_never_printed(tmp_path: Path) -> None:
    config = config_of(tmp_path, key=b" \n")
    with pytest.raises(FolderError, match="snapshot_key_file"):
        read_key(config)
    (tmp_path / "snapshot.key").unlink()
    with pytest.raises(FolderError, match="snapshot_key_file"):
        read_key(config)
