"""`docs/configuration.md` lists every key with its default, and shows servers that start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gym.agent.gymnasium_server import GymnasiumAgentSettings
from gym.environments.gymnasium_server import GymnasiumServerSettings
from gym.model.server import ModelServerSettings
from gym.server.settings import settings_from_command_line
from tests.docs.pages import blocks, rows
from workers.config.gym_servers import environment
from workers.config.settings import Settings, load_settings

PAGE = "docs/configuration.md"
SECTIONS = [
    "Saving and restoring",
    "The job",
    "Policy and Gym servers",
    "Processes of the stack",
    "Secrets",
]
KINDS = {
    "gym.model.server": ModelServerSettings,
    "gym.environments.gymnasium_server": GymnasiumServerSettings,
    "gym.agent.gymnasium_server": GymnasiumAgentSettings,
}


def _shown(default: Any) -> str:
    if default in (None, [], {}):
        return "none"
    if default == "":
        return "empty"
    return str(default)


def test_every_key_is_listed_once_with_its_default() -> None:
    """Break: workers/config/settings.py: add a key, or change a default."""
    listed = [row for section in SECTIONS for row in rows(PAGE, section)]
    assert all(len(row) == 3 and row[2].endswith(".") for row in listed)
    shown = {row[0].strip("`"): row[1].strip("`") for row in listed}
    assert len(shown) == len(listed)
    assert shown == {
        name: _shown(field.get_default(call_default_factory=True))
        for name, field in Settings.model_fields.items()
    }


def test_the_defaults_in_the_design_are_the_same() -> None:
    """Break: docs/design.md: change a default in section 11."""
    for names, defaults, _ in rows("docs/design.md", "11. Configuration"):
        keys = re.findall(r"`(\w+)`", names)
        values = defaults.partition(":")[0].split(", ")
        assert len(keys) == len(values)
        for key, value in zip(keys, values, strict=True):
            assert _shown(Settings.model_fields[key].default) == value


def test_the_servers_that_it_shows_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: show a key that does not exist, or a flag that no server has."""
    (block,) = blocks("toml", [PAGE])
    (tmp_path / "turnpoint.toml").write_text(block)
    monkeypatch.chdir(tmp_path)
    servers = load_settings(attach=False).servers
    assert {server.name for server in servers} >= {"policy_model", "gymnasium", "gymnasium_agent"}
    listed = {name for row in rows(PAGE, "Gym servers") for name in re.findall(r"`(\w+)`", row[0])}
    for server in servers:
        python, m, module, *flags = server.command
        assert (python, m) == ("python", "-m")
        given = environment(
            server,
            snapshot_root=tmp_path,
            token_file=tmp_path / "control_token",
            generation_url="http://127.0.0.1:1/v1",
            expect_restore=False,
        )
        assert listed == given.keys() - {"PATH"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        settings_from_command_line(KINDS[module], flags)
