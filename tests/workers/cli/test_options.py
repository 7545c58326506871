"""The settings of a command on a job: those of the folder's stack, and of no other job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.cli import app as cli
from workers.cli.output import EXIT_REFUSED


@pytest.mark.parametrize("command", ["run", "save", "restore", "prune", "list"])
def test_a_second_job_on_a_stack_is_3_names_both_and_touches_nothing(
    command: str, ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: take the job from the flag, everything else from the stack."""
    words = [command, "--job-id", "other", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "other_job"
    assert "'demo'" in error["message"] and "turnpoint up --job-id other" in error["message"]
    assert sorted(path.name for path in ended_stack.iterdir()) == ["logs", "stack.json"]
