"""A job with two snapshots and a claimed restore; no heartbeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.config import JobConfig
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from tests.activities.not_driven import not_driven
from tests.rl.folder_cases import FIRST, SECOND, config_of, save, start_job


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobConfig:
    """A job of the folder cases' topology, with two snapshots, being restored."""
    monkeypatch.setattr("activities.group.driving", not_driven)
    found = config_of(tmp_path)
    start_job(found)
    folder = SnapshotFolder(found)
    save(folder, FIRST)
    save(folder, SECOND)
    incarnations.claim(found.job_folder, {"run_id": "restore"})
    return found
