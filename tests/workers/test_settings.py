"""Where settings come from, and what their errors say and hide."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gym.protocol import Kind
from rl.messages import SaveSettings, ServerConfig
from workers.errors import SettingsError
from workers.settings import Settings, load_settings

SECRET = "hunter2-very-secret"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and nothing of Turnpoint in the environment."""
    for name in list(os.environ):
        if name.startswith(("TURNPOINT_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_running_stack_beats_file_for_commands_that_speak_to_it(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text('job_id = "file"\nstate_dir = "here"\n')
    (alone / "here").mkdir()
    stack = {"settings": {"job_id": "stack", "policy_url": "http://127.0.0.1:1/v1"}}
    (alone / "here" / "stack.json").write_text(json.dumps(stack))
    assert load_settings().job_id == "stack"
    assert load_settings().policy_url == "http://127.0.0.1:1/v1"
    assert load_settings(attach=False).job_id == "file"


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"lease_s": -1}, "lease_s: Input should be greater than 0"),
        ({"policy": "gpt"}, "policy: "),
        ({"keep_latest_k": 0}, "keep_latest_k: Input should be greater than or equal to 1"),
        ({"lease": 3}, "lease: no such key; allowed: .*lease_s"),
    ],
)
def test_error_names_the_key_and_what_is_allowed(flags: dict[str, object], key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        load_settings(**flags)


def test_error_never_shows_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPOINT_SERVERS", f'[{{"name": "{SECRET} {SECRET}"}}]')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "servers.0" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_secret_in_the_file_is_refused(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text(f'control_token = "{SECRET}"\n')
    with pytest.raises(SettingsError, match=r"control_token: not allowed in turnpoint\.toml") as e:
        load_settings()
    assert SECRET not in str(e.value)


def test_children_get_everything_but_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(
        control_token=SECRET,
        snapshot_key=SECRET,
        lease_s=7,
        servers=[ServerConfig(name="a", kind=Kind.AGENT, url="http://127.0.0.1:1")],
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
    with pytest.raises(SettingsError, match=r"servers, policy_url, generation_port.*turnpoint up"):
        load_settings().job_config()


def test_own_temporal_ignores_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:1")
    assert load_settings().temporal_connection().get("target_host") == "elsewhere:1"
    own = load_settings(temporal_address="127.0.0.1:2").temporal_connection()
    assert own.get("target_host") == "127.0.0.1:2"
