"""Tests of the configuration run in an empty folder and environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and nothing of Turnpoint in the environment."""
    for name in list(os.environ):
        if name.startswith(("TURNPOINT_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
