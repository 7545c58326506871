"""Every command that README and CONTRIBUTING show exists, with the flags they give it.

`tests/real/test_story.py` and the demo run them; this finds the one that was renamed.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gym.agent.gymnasium_server import GymnasiumAgentSettings
from gym.environments.gymnasium_server import GymnasiumServerSettings
from gym.model.server import ModelServerSettings
from gym.server.settings import settings_from_command_line
from workers.cli.app import app
from workers.config.gym_servers import environment
from workers.config.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md"]
KINDS = {
    "gym.model.server": ModelServerSettings,
    "gym.environments.gymnasium_server": GymnasiumServerSettings,
    "gym.agent.gymnasium_server": GymnasiumAgentSettings,
}


def shown(program: str) -> list[str]:
    """The command lines of a program in the pages' code blocks."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            joined = block.replace("\\\n", " ")
            found += re.findall(rf"^\s*\$ (?:[A-Z_]+=\S+ )*{program} (.*)$", joined, re.MULTILINE)
    return sorted(set(found))


@pytest.mark.parametrize("line", shown("turnpoint"))
def test_a_turnpoint_command_exists_with_its_flags(line: str) -> None:
    words = shlex.split(line, comments=True)
    done = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for word in words[1:]:
        if word.startswith("--"):
            assert word in done.output


@pytest.mark.parametrize("line", shown("make"))
def test_a_make_target_exists(line: str) -> None:
    target = shlex.split(line, comments=True)[0]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_pages_show_commands() -> None:
    assert len(shown("turnpoint")) >= 6
    assert shown("make")


def test_the_servers_that_the_readme_names_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: show a key that is none, or a flag that no server has."""
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "turnpoint.toml").write_text(block)
    monkeypatch.chdir(tmp_path)
    servers = load_settings(attach=False).servers
    assert {server.name for server in servers} >= {"policy_model", "gymnasium", "gymnasium_agent"}
    for server in servers:
        python, m, module, *flags = server.command
        assert (python, m) == ("python", "-m")
        told = environment(
            server,
            snapshot_root=tmp_path,
            token_file=tmp_path / "control_token",
            generation_url="http://127.0.0.1:1/v1",
            expect_restore=False,
        )
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        settings_from_command_line(KINDS[module], flags)
