"""An error names the flag, variable or file of a wrong value, and never the value."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gym.server.settings import ServerSettings
from workers.config.origins import MARKS
from workers.config.settings import Settings, load_settings
from workers.errors import SettingsError
from workers.stack.processes import NAME_MARK, STACK_MARK

SECRET = "hunter2-very-secret"


def test_error_never_shows_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPOINT_SERVERS", f'[{{"name": "{SECRET} {SECRET}"}}]')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "servers.0" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("place", ["flag", "environment", "file", "stack"])
def test_error_says_where_the_wrong_value_stands(
    alone: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Break: look for the place in the file first. Each place here overrules those after it."""
    (alone / "turnpoint.toml").write_text(f'lease_s = "{SECRET}"\n')
    said, flags = str(alone / "turnpoint.toml"), {}
    if place in ("stack", "environment", "flag"):
        (alone / ".turnpoint").mkdir()
        stack = alone / ".turnpoint" / "stack.json"
        stack.write_text(json.dumps({"settings": {"lease_s": SECRET}}))
        said = f"{stack}, written by `turnpoint up`"
    if place in ("environment", "flag"):
        monkeypatch.setenv("TURNPOINT_LEASE_S", SECRET)
        said = "environment variable TURNPOINT_LEASE_S"
    if place == "flag":
        flags, said = {"lease_s": SECRET}, "flag --lease-s"
    with pytest.raises(SettingsError) as caught:
        load_settings(**flags)
    assert str(caught.value).startswith("lease_s: ")
    assert str(caught.value).endswith(f"({said})")
    assert SECRET not in str(caught.value)


def test_error_in_a_nested_key_says_where_that_key_stands(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone / "turnpoint.toml").write_text("[options.counter]\ntool-delay-s = [1]\n")
    monkeypatch.setenv("TURNPOINT_OPTIONS", '{"policy": {"turns": "3"}}')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "options.counter.tool-delay-s" in str(caught.value)
    assert str(alone / "turnpoint.toml") in str(caught.value)


def test_unknown_key_in_the_file_is_named_with_file_and_the_nearest(alone: Path) -> None:
    (alone / "turnpoint.toml").write_text("keep_latest = 3\n")
    with pytest.raises(SettingsError, match=r"keep_latest: no such key in .*turnpoint\.toml") as e:
        load_settings()
    assert "the nearest is keep_latest_k" in str(e.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TURNPOINT_LEASES", "TURNPOINT_LEASE_S"),
        ("TURNPOINT_KEEP_LATEST", "TURNPOINT_KEEP_LATEST_K"),
    ],
)
def test_unknown_environment_variable_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    """Break: leave `require_known_variables` out."""
    monkeypatch.setenv(name, SECRET)
    with pytest.raises(SettingsError, match=f"{name}: no such key; the nearest is {nearest}") as e:
        load_settings()
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(
    "name",
    [
        *("TURNPOINT_WORKER_SERVICE_HOST", "TURNPOINT_UI_PORT_80_TCP_ADDR", "TURNPOINT_STACK_ID"),
        "TURNPOINT_SERVER_MY_KEY",
    ],
)
def test_variables_of_clusters_marks_and_gym_servers_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Break: workers/config/origins.py: refuse `TURNPOINT_SERVER_*` too."""
    monkeypatch.setenv(name, "10.0.0.1")
    load_settings()


def test_every_variable_of_the_compose_file_is_read_by_the_job_or_by_its_gym_servers() -> None:
    """Break: keep a name that has changed; then each command refuses, or a server has a default."""
    compose = (Path(__file__).parents[3] / "docker-compose.yml").read_text()
    given = set(re.findall(r"TURNPOINT_([A-Z_]+)", compose))
    marks = {mark.removeprefix("TURNPOINT_") for mark in (STACK_MARK, NAME_MARK)}
    of_servers = {f"SERVER_{name.upper()}" for name in ServerSettings.model_fields}
    assert marks == MARKS
    assert given <= of_servers | {name.upper() for name in Settings.model_fields}
