"""The files that settings are read from: their order, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.config.settings import load_settings
from workers.errors import SettingsError

SECRET = "hunter2-very-secret"


def test_running_stack_beats_file_for_commands_that_speak_to_it(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text('job_id = "file"\nstate_dir = "here"\n')
    (alone / "here").mkdir()
    stack = {"settings": {"job_id": "stack", "policy_url": "http://127.0.0.1:1/v1"}}
    (alone / "here" / "stack.json").write_text(json.dumps(stack))
    assert load_settings().job_id == "stack"
    assert load_settings().policy_url == "http://127.0.0.1:1/v1"
    assert load_settings(attach=False).job_id == "file"


def test_files_that_cannot_be_read_are_named(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / ".turnpoint").mkdir()
    (alone / ".turnpoint" / "stack.json").write_text("{")
    with pytest.raises(SettingsError, match=r"stack\.json cannot be read .*turnpoint up"):
        load_settings()
    (alone / "turnpoint.toml").write_bytes(b"job_id = \xff")
    with pytest.raises(SettingsError, match=r"turnpoint\.toml cannot be read: it is not UTF-8"):
        load_settings(attach=False)
    (alone / "turnpoint.toml").write_text("job_id =")
    with pytest.raises(SettingsError, match=r"turnpoint\.toml is not TOML"):
        load_settings(attach=False)
    (alone / "turnpoint.toml").unlink()
    monkeypatch.setenv("TURNPOINT_OPTIONS", SECRET)
    with pytest.raises(SettingsError, match=r"options: not JSON .*TURNPOINT_OPTIONS") as caught:
        load_settings(attach=False)
    assert SECRET not in str(caught.value)


def test_secret_in_the_file_is_refused(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text(f'control_token = "{SECRET}"\n')
    with pytest.raises(SettingsError, match=r"control_token: not allowed in turnpoint\.toml") as e:
        load_settings()
    assert SECRET not in str(e.value)
