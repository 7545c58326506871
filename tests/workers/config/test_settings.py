"""Sources of the settings, and what their errors show and hide."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.protocol import Kind
from rl.config import SaveSettings
from workers.config.gym_servers import GymServer
from workers.config.settings import Settings, load_settings
from workers.errors import SettingsError

SECRET = "hunter2-very-secret"


def test_defaults_are_the_designs() -> None:
    settings = load_settings()
    assert settings.snapshot_attempt_interval_s is None
    assert settings.save_settings() == SaveSettings(
        prepare_timeout_s=300,
        commit_timeout_s=300,
        cut_timeout_s=300,
        publish_timeout_s=600,
        lease_s=30,
        keep_latest_k=2,
    )
    assert (settings.restore_wait_s, settings.data_plane_timeout_s, settings.max_runs) == (
        120,
        20,
        3,
    )


def test_flag_beats_environment_beats_file(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "turnpoint.toml").write_text('lease_s = 11\nmax_runs = 5\njob_id = "file"\n')
    monkeypatch.setenv("TURNPOINT_LEASE_S", "12")
    monkeypatch.setenv("TURNPOINT_JOB_ID", "environment")
    settings = load_settings(job_id="flag")
    assert (settings.job_id, settings.lease_s, settings.max_runs) == ("flag", 12, 5)


def test_children_get_everything_but_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(
        control_token=SECRET,
        snapshot_key=SECRET,
        lease_s=7,
        servers=[
            GymServer(name="a", kind=Kind.AGENT, url="http://127.0.0.1:1", command=["a", "--b"])
        ],
        options={"simple_agent": {"max-steps": "8"}},
    )
    env = given.environment()
    assert SECRET not in repr(env)
    assert not {"TURNPOINT_CONTROL_TOKEN", "TURNPOINT_SNAPSHOT_KEY"} & set(env)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    got = load_settings()
    assert got.model_dump(exclude={"control_token", "snapshot_key"}) == given.model_dump(
        exclude={"control_token", "snapshot_key"}
    )


def test_job_config_names_what_is_missing() -> None:
    servers = [{"name": "a", "kind": "agent", "url": "http://127.0.0.1:1"}]
    with pytest.raises(SettingsError, match=r"policy_url, generation_port.*turnpoint up"):
        load_settings(servers=servers).job_config()


def test_own_temporal_ignores_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:1")
    assert load_settings().temporal_connection().get("target_host") == "elsewhere:1"
    own = load_settings(temporal_address="127.0.0.1:2").temporal_connection()
    assert own.get("target_host") == "127.0.0.1:2"
