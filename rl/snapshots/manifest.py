"""`manifest.json` of a snapshot: its content, sealed against changes (design section 8).

The manifest is written last and names every file with bytes and sha256. It carries a digest of
itself, so damage to it is found; with a key also an HMAC, so a forged one is refused. Digest
and HMAC cover the snapshot's name and job too: a manifest that was moved is another one.
Without a key only damage is promised to be found.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gym.protocol import (
    SCHEMA_VERSION,
    SecretFileRefused,
    Wire,
    WrittenFile,
    canonical_json,
    digest_of,
)
from gym.protocol.records import OperationId, Sha256
from gym.secret_file import read_secret_file
from rl.config import JobId, SnapshotPlace
from rl.errors import FolderError, SnapshotDamaged
from rl.messages import SnapshotFolderName, Topology

MANIFEST = "manifest.json"
BOOTSTRAP = "bootstrap"
"""Trainer anchor before the first trainer checkpoint."""
_SEALS = ("sha256", "hmac")
_KEY = "put the key back, or unset it: then only damage is found"
_Raw = bytes  # within the model, `bytes` is a property: the word that results and tables use


class SnapshotManifest(Wire):
    """Content of `manifest.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    job_id: JobId
    snapshot: SnapshotFolderName
    checkpoint_id: OperationId
    name: str | None = None
    """A named snapshot is never pruned."""
    incarnation: int = Field(ge=1)
    created_at: datetime
    topology: Topology
    trainer_anchor: str = BOOTSTRAP
    counts: dict[str, int] = {}
    files: list[WrittenFile]
    """Every other file of the folder, by path."""
    sha256: Sha256 | None = None
    """Digest of the canonical JSON without `sha256` and `hmac`."""
    hmac: Sha256 | None = None
    """HMAC-SHA256 of the same bytes, if there was a key."""

    @property
    def bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file.bytes for file in self.files)

    def sealed(self, key: _Raw | None) -> SnapshotManifest:
        """The same manifest with its digest and, with a key, its HMAC."""
        body = self.model_dump(mode="json")
        return self.model_copy(update={"sha256": _digest(body), "hmac": _mac(body, key)})

    def encoded(self) -> _Raw:
        """The bytes of the file: canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))


def read_key(config: SnapshotPlace) -> bytes | None:
    """The key of the HMAC, if one is configured.

    Raises:
        FolderError: The configured file cannot be read, is empty, or others may read it: with
            such a key others could seal a snapshot.
    """
    if config.snapshot_key_file is None:
        return None
    try:
        key = read_secret_file(config.snapshot_key_file, "snapshot_key_file")
    except SecretFileRefused as error:
        raise FolderError(f"{error}; {_KEY}") from None
    return key.get_secret_value().encode()


def read_manifest(folder: Path) -> SnapshotManifest:
    """Read a snapshot's manifest and check it against its own digest; no HMAC, no files.

    Raises:
        SnapshotDamaged: It is missing, does not parse, is not the manifest of a folder of this
            name, or its digest is another one.
    """
    return _parse(folder)[0]


def verify_manifest(folder: Path, job_id: str, key: bytes | None) -> SnapshotManifest:
    """`read_manifest`, and: of this job, and with a key its HMAC is right (constant time).

    Raises:
        SnapshotDamaged: As `read_manifest`; or the HMAC is missing or another one.
    """
    manifest, body = _parse(folder)
    if manifest.job_id != job_id:
        raise damaged(folder.name, MANIFEST, "it belongs to another job")
    expected = _mac(body, key)
    if expected is not None and not hmac.compare_digest(expected, manifest.hmac or ""):
        reason = "its HMAC is another one" if manifest.hmac else "it carries no HMAC"
        raise damaged(folder.name, MANIFEST, reason)
    return manifest


def damaged(snapshot: str, file: str, reason: str) -> SnapshotDamaged:
    """The error that names the damaged file."""
    return SnapshotDamaged(
        f"{file}: {reason}", participant=snapshot, details={"file": file, "reason": reason}
    )


def _parse(folder: Path) -> tuple[SnapshotManifest, dict[str, Any]]:
    path = folder / MANIFEST
    for place, file in ((folder, "."), (path, MANIFEST)):
        if place.is_symlink():
            raise damaged(folder.name, file, "it is a symlink")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise damaged(folder.name, MANIFEST, f"cannot be read ({_errno(error)})") from None
    try:
        body = json.loads(raw)
        manifest = SnapshotManifest.model_validate(body)
        # The digest is taken of what the file says, not of the model: a field that a later
        # version adds with a default must not change the digest of an older file.
        intact = raw == canonical_json(body) and _digest(body) == manifest.sha256
    except (ValueError, RecursionError):
        raise damaged(folder.name, MANIFEST, "it does not parse") from None
    if not intact:
        raise damaged(folder.name, MANIFEST, "its digest is another one")
    if manifest.snapshot != folder.name:
        raise damaged(folder.name, MANIFEST, f"it is the manifest of {manifest.snapshot}")
    return manifest, body


def _digest(body: dict[str, Any]) -> str:
    return digest_of(_unsealed(body))


def _mac(body: dict[str, Any], key: bytes | None) -> str | None:
    if key is None:
        return None
    return hmac.new(key, canonical_json(_unsealed(body)), hashlib.sha256).hexdigest()


def _unsealed(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _SEALS}


def _errno(error: OSError) -> str:
    return error.strerror or type(error).__name__
