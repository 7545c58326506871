"""The program as a whole: help, usage, exit codes, sentences instead of stack traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from temporalio.service import RPCError, RPCStatusCode

from workers.cli import app as cli
from workers.cli.output import EXIT_FAILED, EXIT_NOT_REACHABLE, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from workers.job.ray_client import RayCallFailed
from workers.stack.stack import Stack

STACK = ["up", "down", "status", "logs", "doctor"]


COMMANDS = [*STACK, "run", "save", "restore", "prune", "list", "inspect", "verify"]


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == EXIT_OK
    assert capsys.readouterr().out == f"{metadata.version('turnpoint')}\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == EXIT_OK
    shown = capsys.readouterr()
    assert shown.out.lstrip().startswith("Usage:") and not shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_documents_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([command, "--help"]) == EXIT_OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 done; 1 failed; 2 wrong usage" in shown
    assert "--json" in shown


@pytest.mark.parametrize(
    "words", [["frob"], ["up", "--nope"], ["run", "--generations", "0"], ["logs"]]
)
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(words) == EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("turnpoint: ")


def test_bad_configuration_is_2_and_names_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNPOINT_LEASE_S", "soon")
    assert cli.run(["list"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "lease_s" in error and "soon" not in error


def test_interrupt_is_130_and_says_that_everything_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Stack, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "down", interrupted)
    assert cli.run(["down"]) == 130
    assert "go on as they are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("dataset_invalid", EXIT_USAGE),
        ("job_alive", EXIT_REFUSED),
        ("ray_unreachable", EXIT_NOT_REACHABLE),
        ("servers_missing", EXIT_NOT_REACHABLE),
        ("server_unfit", EXIT_FAILED),
    ],
)
def test_an_error_of_another_process_has_the_exit_code_of_its_kind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
    exit_code: int,
) -> None:
    def fail(self: Stack, **_: object) -> int:
        raise RayCallFailed(code, "rows.jsonl:2: not an object")

    monkeypatch.setattr(Stack, "down", fail)
    assert cli.run(["down", "--json", "--state-dir", str(tmp_path)]) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"code": code, "message": "rows.jsonl:2: not an object"}


def test_what_temporal_refuses_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: let the RPCError rise."""

    def refuse(self: Stack, **_: object) -> int:
        raise RPCError("secret of the server", RPCStatusCode.NOT_FOUND, b"")

    monkeypatch.setattr(Stack, "down", refuse)
    assert cli.run(["down", "--json", "--state-dir", str(tmp_path)]) == EXIT_NOT_REACHABLE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "temporal_refused" and "NOT_FOUND" in error["message"]
    assert "TEMPORAL_NAMESPACE" in error["message"] and "secret" not in error["message"]


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
def test_a_result_that_cannot_be_printed_is_no_success_and_no_stack_trace(words: list[str]) -> None:
    """Break: workers/cli/app.py: let what `flush` raises rise."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "workers", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    assert done.returncode == EXIT_FAILED
    assert "Traceback" not in done.stderr
