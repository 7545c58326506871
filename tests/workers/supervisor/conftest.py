"""The supervisor of a test, without waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.supervisor.given import Given
from workers.config.settings import Settings, load_settings
from workers.supervisor import recovery, supervisor


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TURNPOINT_CONTROL_TOKEN", "t" * 40)
    monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(recovery, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(recovery, "MOST_BACKOFF_S", 0.004)
    return load_settings(
        state_dir=tmp_path,
        servers=[{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:1"}],
        policy_url="http://127.0.0.1:1/v1",
        generation_port=1,
    )


@pytest.fixture
def given(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(settings, monkeypatch)
