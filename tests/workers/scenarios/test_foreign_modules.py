"""A project's own `gym`, `rl`, `workers`, `workflows` and `activities` break no command."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import turnpoint_program
from tests.ports import free_port
from tests.real.live import TURNPOINT, environment
from workers.stack.python_path import PACKAGES

ENVIRONMENT = """
import my_helper
from gym.environments.counter import Counter, CounterSettings
from gym.resource import serve_environment

if __name__ == "__main__":
    assert my_helper.IS_THE_PROJECTS
    serve_environment(Counter, CounterSettings)
"""
NAMES = ("policy_model", "simple_agent", "counter")


class Project:
    """A folder with modules of our names, each of which raises; PYTHONPATH has more of them."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "project"
        elsewhere = root / "elsewhere"
        for folder in (self.folder, elsewhere):
            folder.mkdir()
            for name in ("workflows.py", "activities.py", "tests.py"):
                (folder / name).write_text(f"raise RuntimeError('imported: {folder / name}')\n")
            for name in ("gym", "rl", "workers"):
                (folder / name).mkdir()
                (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name}')\n")
        (self.folder / "my_env.py").write_text(ENVIRONMENT)
        (elsewhere / "my_helper.py").write_text("IS_THE_PROJECTS = True\n")
        self._env = environment() | {
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(elsewhere), ""])
        }

    def turnpoint(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder."""
        return subprocess.run(
            [str(TURNPOINT), *words],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def answer(self, *words: str) -> Any:
        """The JSON of a command that must succeed."""
        done = self.turnpoint(*words, "--json")
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return json.loads(done.stdout)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (program,) = entry_points(group="console_scripts", name="turnpoint")
    assert program.value == "turnpoint_program:main", "an older installation: `make install`"
    return Project(tmp_path)


def test_program_and_stack_put_the_same_packages_first() -> None:
    root = Path(__file__).parents[3]
    assert frozenset(PACKAGES) == turnpoint_program.PACKAGES
    ours = {path.parent.name for path in root.glob("*/__init__.py")} - {"tests", "examples"}
    assert ours == turnpoint_program.PACKAGES


@pytest.mark.parametrize("words", [["--help"], ["doctor"], ["list"]])
def test_a_command_ends_without_a_stack_trace(project: Project, words: list[str]) -> None:
    """Break: pyproject.toml: name `workers.__main__:main` as the program."""
    done = project.turnpoint(*words)
    assert "RuntimeError" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    if words == ["--help"]:
        assert done.returncode == 0 and "restore" in done.stdout


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_job_is_saved_and_restored_beside_them(project: Project) -> None:
    """Break: workers/stack/python_path.py: answer the environment, or the command, as it is."""
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in NAMES}
    wired = ["--model-url", urls["policy_model"], "--resource", f"counter={urls['counter']}"]
    commands = {
        "policy_model": ("model", ["python", "-m", "gym.model.server"]),
        "simple_agent": ("agent", ["python", "-m", "gym.agent.server", *wired]),
        "counter": ("resource", ["python", "-m", "my_env"]),
    }
    servers = [
        {"name": name, "kind": kind, "url": urls[name], "command": command}
        for name, (kind, command) in commands.items()
    ]
    lines = [
        'policy = "scripted"',
        "port_base = 26_750",
        "workers = 1",
        'options = {policy = {delay-s = "0.3", turns = "12"}}',
    ]
    for server in servers:
        lines += ["[[servers]]", *(f"{key} = {json.dumps(value)}" for key, value in server.items())]
    (project.folder / "turnpoint.toml").write_text("\n".join(lines))
    try:
        project.answer("up")
        project.answer("run", "--detach")
        assert project.answer("save")["outcome"] == "published"
        project.answer("down", "--kill")
        project.answer("up")
        assert project.answer("run")["state"] == "finished"
    finally:
        project.turnpoint("down", "--kill")
