"""Errors of RL's own files: they name the file and its fields, and never show content."""

from __future__ import annotations

from pydantic import ValidationError

from rl.errors import SnapshotDamaged


def damaged(path: str, reason: str) -> SnapshotDamaged:
    """The error for a file of a snapshot; `path` is relative to the snapshot's folder."""
    return SnapshotDamaged(f"{path}: {reason}", details={"file": path})


def fields_of(error: ValidationError) -> str:
    """Names of the fields that do not validate, without their values."""
    return ", ".join(
        sorted({".".join(map(str, item["loc"])) or "the whole" for item in error.errors()})
    )
