"""`up`, `down`, `status`, `logs`: what they print and what they refuse."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from workers.cli import app as cli
from workers.cli.output import EXIT_FAILED, EXIT_NOT_REACHABLE, EXIT_OK, EXIT_USAGE
from workers.config.settings import Settings
from workers.stack.resolve import ports_needed


@pytest.mark.parametrize("name", [*ports_needed(Settings()), "generation_port"])
def test_each_fixed_port_in_use_is_named_with_its_setting_and_starts_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: leave a name out of `ports_needed`, or `generation_port` out of `fixed_ports`."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        if name == "generation_port":
            monkeypatch.setenv("TURNPOINT_GENERATION_PORT", str(port))
        else:
            monkeypatch.setenv("TURNPOINT_PORTS", json.dumps({name: port}))
        assert cli.run(["up", "--policy", "scripted", "--json"]) == EXIT_FAILED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "port_in_use"
    key = "generation_port" if name.startswith("generation") else f"ports.{name}"
    assert f"{name.removesuffix('_port')}: port {port} is in use" in error["message"]
    assert f"({key})" in error["message"]
    assert not (tmp_path / ".turnpoint" / "stack.json").exists()


@pytest.mark.parametrize(
    "command",
    [
        *("status", "status --follow", "run", "run --detach", "save", "restore"),
        *("restore --replace", "prune", "list", "inspect", "verify"),
    ],
)
def test_without_a_stack_every_command_says_at_once_how_to_start_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: leave it to the first look into Ray (60 s), or to Temporal's default address."""
    began = time.monotonic()
    assert cli.run([*command.split(), "--json"]) == EXIT_NOT_REACHABLE
    assert time.monotonic() - began < 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "not_running"
    assert error["message"].startswith(
        f"no stack in {tmp_path / '.turnpoint'}; start one with `turnpoint up`"
    )
    assert not (tmp_path / ".turnpoint").exists()


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_status_of_a_stack_that_is_down_says_so_first_and_asks_no_server(
    words: list[str], ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: show its table, and every server that does not answer."""
    assert cli.run(["status", "--state-dir", str(ended_stack), *words]) == EXIT_NOT_REACHABLE
    shown = capsys.readouterr()
    if words:
        body = json.loads(shown.out)
        assert (body["running"], body["job"]["problems"]) == ({}, {})
    else:
        assert shown.out == f"the stack in {ended_stack} is down; `turnpoint up` starts it\n"
        assert shown.err == "job demo: not running; newest snapshot: none\n"


def test_down_of_nothing_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["down", "--json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == {"ended": 0}


def test_logs_prints_the_end_and_names_what_there_is(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--state-dir", str(ended_stack)]
    assert cli.run(["logs", "counter", "-n", "1", *where]) == EXIT_OK
    assert capsys.readouterr().out == "last\n"
    assert cli.run(["logs", "agent", *where]) == EXIT_USAGE
    assert "there are: counter" in capsys.readouterr().err


def test_without_a_supervisor_its_log_says_who_would_supervise(
    ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: treat it as a wrong name."""
    words = ["logs", "supervisor", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_NOT_REACHABLE
    said = capsys.readouterr().err
    assert "the job was not supervised" in said and "without --detach" in said


def test_a_record_of_the_stack_that_is_damaged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stack.json").write_text('{"settings": {}}')
    for command in ("up", "status", "down"):
        assert cli.run([command, "--json", "--state-dir", str(tmp_path)]) == EXIT_USAGE
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "settings" and "stack.json" in error["message"]
