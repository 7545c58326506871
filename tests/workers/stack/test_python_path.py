"""Processes of a stack find Turnpoint's packages first, and the project's other modules too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.stack.python_path import PACKAGES, package_folder, project_command

ROOT = Path(__file__).parents[3]
PROBE = """
import json, sys, gym, rl, helper, pydantic
json.dump([m.__file__ for m in (gym, rl, helper, pydantic)], sys.stdout)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a module of its own, and with two whose names are ours or a library's."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    for name, text in {
        "gym.py": "raise RuntimeError('gym of the project')",
        "scripts/rl.py": "raise RuntimeError('rl of the project')",
        "probe.py": PROBE,
        "helper.py": "",
        "scripts/probe.py": PROBE,
        "scripts/helper.py": "",
        "pydantic.py": "",
        "scripts/pydantic.py": "",
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("program", ["python", "python3", sys.executable])
@pytest.mark.parametrize(
    ("words", "place"), [(["-m", "probe"], "."), (["scripts/probe.py"], "scripts")]
)
def test_our_packages_win_and_the_others_are_the_projects(
    project: Path, tmp_path: Path, program: str, words: list[str], place: str
) -> None:
    """Break: workers/stack/python_path.py: leave `-P` out; put the installed folder first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(project)}
    command, env = project_command([program, *words], env, project, tmp_path / "state")
    done = subprocess.run(command, env=env, cwd=project, capture_output=True, check=True)
    gym, rl, helper, pydantic = (Path(file).resolve() for file in json.loads(done.stdout))
    assert (gym.parent, rl.parent) == (ROOT / "gym", ROOT / "rl")
    assert {helper.parent, pydantic.parent} == {(project / place).resolve()}


@pytest.mark.parametrize("program", ["sh", ".venv/bin/python", "no-such-program"])
def test_a_program_of_another_environment_is_left_as_it_is(
    project: Path, tmp_path: Path, program: str
) -> None:
    other = project / ".venv" / "bin"
    other.mkdir(parents=True)
    (other / "python").symlink_to(sys.executable)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": "theirs"}
    given = [program, "-m", "probe"]
    assert project_command(given, env, project, tmp_path) == (given, env)


def test_a_script_of_this_environment_gets_the_packages_and_no_flag(tmp_path: Path) -> None:
    """Break: take every program of this environment for Python."""
    script = str(Path(sys.executable).with_name("uvicorn"))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": "theirs"}
    command, env = project_command([script, "my_env:app"], env, tmp_path, tmp_path / "state")
    assert command == [script, "my_env:app"]
    packages = tmp_path / "state" / "python"
    assert env["PYTHONPATH"] == os.pathsep.join([str(packages), "theirs"])


def test_links_of_another_installation_are_replaced(tmp_path: Path) -> None:
    """Break: keep a link that is there."""
    folder = package_folder(tmp_path)
    (folder / "gym").unlink()
    (folder / "gym").symlink_to(tmp_path / "gone")
    package_folder(tmp_path)
    assert {link.name: link.resolve() for link in folder.iterdir()} == {
        name: ROOT / name for name in PACKAGES
    }
