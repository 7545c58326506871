"""Odd files, variables and folders: a typed sentence that names them, never a stack trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.cli import app as cli
from workers.cli.output import EXIT_FAILED, EXIT_USAGE
from workers.stack.stack import Stack

SECRET = "s3cret-value"
DEEP = "[" * 100_000
FLEET = {
    "SERVERS": '[{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:1"}]',
    "POLICY_URL": "http://127.0.0.1:1/v1",
    "GENERATION_PORT": "2",
}

Told = Callable[..., str]


def _starts(*_: object) -> None:
    raise AssertionError("it was not refused before anything was started")


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Told:
    """Runs a command in an empty folder; answers the sentence of the error it must end with."""
    for name in list(os.environ):
        if name.upper().startswith(("TURNPOINT_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Stack, "_start", _starts)

    def run(*words: str, code: str = "settings", ends: int = EXIT_USAGE) -> str:
        assert cli.run([*words, "--json"]) == ends
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == code, error
        return str(error["message"])

    return run


@pytest.mark.parametrize(
    "content", ['{"settings": []}', '{"settings": null}', '{"settings": "x"}', DEEP]
)
@pytest.mark.parametrize("command", ["list", "status", "down", "doctor"])
def test_a_record_of_the_stack_that_is_none_is_named(
    told: Told, command: str, content: str
) -> None:
    """Break: workers/config/sources.py: answer whatever stands under `settings`."""
    Path(".turnpoint").mkdir()
    Path(".turnpoint/stack.json").write_text(content)
    assert "stack.json cannot be read as a stack's record; remove it" in told(command)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state_dir", "5"),
        ("state_dir", "[1]"),
        ("state_dir", '"~nobody-of-this-name/x"'),
        ("snapshot_root", '"~nobody-of-this-name/x"'),
        ("snapshot_root", '"a\\u0000b"'),
    ],
)
def test_a_path_that_is_none_is_refused_with_its_key_and_place(
    told: Told, key: str, value: str
) -> None:
    """Break: workers/config/sources.py: take `state_dir` for a path before it was checked."""
    Path("turnpoint.toml").write_text(f"{key} = {value}\n")
    message = told("list")
    assert message.startswith(f"{key}: ") and str(Path("turnpoint.toml").absolute()) in message


def test_a_state_folder_that_is_a_file_is_not_called_a_damaged_record(told: Told) -> None:
    Path("here").write_text("")
    for command in ("list", "status", "down", "doctor"):
        message = told(command, "--state-dir", "here")
        assert message.startswith("state_dir: ") and "Not a directory" in message
        assert "remove it" not in message
    assert "here" in told("up", "--state-dir", "here", code="os_error", ends=EXIT_FAILED)


def test_a_configuration_that_is_no_file_is_not_passed_over(told: Told) -> None:
    """Break: leave it to pydantic-settings, which reads files alone: defaults would hold."""
    Path("turnpoint.toml").mkdir()
    assert "turnpoint.toml cannot be read: it is not a file" in told("list")
    Path("turnpoint.toml").rmdir()
    Path("turnpoint.toml").symlink_to("nowhere")
    assert "turnpoint.toml cannot be read: it is not a file" in told("list")


def test_what_is_nested_too_deeply_is_a_sentence(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("turnpoint.toml").write_text(f"a = {DEEP}")
    assert "turnpoint.toml is not TOML" in told("list")
    Path("turnpoint.toml").unlink()
    monkeypatch.setenv("TURNPOINT_SERVERS", DEEP)
    assert "nested too deeply" in told("list")


def test_an_unknown_key_of_a_server_is_told_with_the_nearest_and_what_there_is(told: Told) -> None:
    Path("turnpoint.toml").write_text(
        '[[servers]]\nname = "a"\nkind = "agent"\nurl = "http://h:1"\ncomand = ["x"]\n'
    )
    message = told("list")
    assert message.startswith("servers.0.comand: no such key in ")
    assert "the nearest is command; allowed: command, folder, kind, name, url" in message


def test_variables_in_small_letters_are_variables_too(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic-settings reads them. Break: workers/config/origins.py: look at capitals alone."""
    monkeypatch.setenv("turnpoint_leases", SECRET)
    assert "turnpoint_leases: no such key" in told("list")
    monkeypatch.delenv("turnpoint_leases")
    monkeypatch.setenv("turnpoint_lease_s", SECRET)
    assert told("list").endswith("(environment variable TURNPOINT_LEASE_S)")


@pytest.mark.parametrize("command", ["list", "inspect", "verify"])
def test_what_the_system_refuses_is_named_by_its_path(
    told: Told, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Break: workers/cli/app.py: let the OSError rise."""
    Path("root").write_text("")
    monkeypatch.setenv("TURNPOINT_SNAPSHOT_ROOT", "root")
    message = told(command, code="os_error", ends=EXIT_FAILED)
    assert str(Path("root/demo").absolute()) in message and "Not a directory" in message


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("ports", {"tempral": 26_999}, "temporal"),
        ("options", {"conter": {"tool-delay-s": "1"}}, "counter"),
        ("options", {"ray": {"x": "1"}}, "policy"),
    ],
)
def test_ports_and_options_of_no_process_are_refused_before_anything_starts(
    told: Told, monkeypatch: pytest.MonkeyPatch, key: str, value: dict[str, Any], nearest: str
) -> None:
    """Break: workers/stack/stack.py: do not ask; they would be ignored in silence."""
    monkeypatch.setenv(f"TURNPOINT_{key.upper()}", json.dumps(value))
    message = told("up", "--policy", "scripted")
    assert message.startswith(f"{key}.{next(iter(value))}: no such process")
    assert nearest in message
    assert not Path(".turnpoint/stack.json").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ADDRESS", SECRET + " not:an:address"),
        ("PROFILE", SECRET),
        ("CONFIG_FILE", "temporal.toml"),
        ("TLS_CLIENT_CERT_PATH", f"/{SECRET}"),
    ],
)
def test_what_temporals_configuration_gets_wrong_is_a_sentence_without_its_text(
    told: Told, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Break: workers/config/settings.py: let the SDK's error rise.

    It shows the line with the API key.
    """
    Path("temporal.toml").write_text(f"[profile.default]\napi_key = {SECRET}\n")
    for key, setting in FLEET.items():
        monkeypatch.setenv(f"TURNPOINT_{key}", setting)
    monkeypatch.setenv(f"TEMPORAL_{name}", value)
    message = told("save")
    assert "TEMPORAL_" in message and SECRET not in message
