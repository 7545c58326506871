"""`docker/turnpoint.service` runs commands that exist, and gives the last save its time.

`tests/real/test_supervision.py` runs its command after the loss of a whole machine.
"""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from workers.cli.app import app
from workers.cli.output import EXIT_TERMINATED, EXIT_USAGE

UNIT = Path(__file__).parents[3] / "docker" / "turnpoint.service"


def service() -> dict[str, str]:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(UNIT)
    return dict(unit["Service"])


def commands() -> list[list[str]]:
    """The words of each `turnpoint` command of the unit, in order."""
    shell, flag, script = shlex.split(service()["execstart"])
    assert (shell, flag) == ("/bin/sh", "-c")
    words = [shlex.split(part) for part in script.split(" && ")]
    assert words[-1].pop(0) == "exec"  # SIGTERM is for `run`, not for a shell
    assert all(command[0] == "turnpoint" for command in words)
    return [command[1:] for command in words]


def test_it_ends_what_is_left_starts_the_stack_and_supervises() -> None:
    """Break: rename a flag, or start the stack from a line that systemd ends (ExecStartPre)."""
    assert [command[0] for command in commands()] == ["down", "up", "run"]
    assert [key for key in service() if key.startswith("exec")] == ["execstart"]
    for name, *flags in commands():
        done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0
        assert all(flag in done.output for flag in flags if flag.startswith("--"))


def test_the_last_save_has_its_grace_period_and_its_exit_code_is_no_failure() -> None:
    """Break: a grace period longer than systemd's patience, and the save is killed."""
    grace_s = re.search(r"--grace-s (\d+)", service()["execstart"])
    assert grace_s and int(grace_s.group(1)) + 20 < int(service()["timeoutstopsec"])
    assert service()["successexitstatus"] == str(EXIT_TERMINATED)
    assert service()["restartpreventexitstatus"] == str(EXIT_USAGE)
    assert (service()["killmode"], service()["restart"]) == ("mixed", "on-failure")
