"""`save`, `restore`, `prune`: refusals, a missing Temporal or Ray, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from urllib.parse import quote

import pytest

from rl.errors import RayUnreachable
from rl.messages import ControllerStatus
from tests.workers.observations import status
from workers.cli import app as cli
from workers.cli.output import EXIT_NOT_REACHABLE, EXIT_REFUSED, EXIT_USAGE
from workers.job import commands as job_runs


def test_a_restore_without_ray_says_that_the_stack_is_down_else_which_address_is_silent(
    ended_stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: let Ray's own refusal rise."""

    async def no_ray(*_: object) -> None:
        raise RayUnreachable("nobody listens at RAY_ADDRESS")

    monkeypatch.setattr(job_runs, "controller_status", no_ray)
    words = ["restore", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_NOT_REACHABLE
    assert json.loads(capsys.readouterr().out)["error"] == {
        "code": "not_running",
        "message": f"the stack in {ended_stack} is down; `turnpoint up` starts it",
    }
    record = json.loads((ended_stack / "stack.json").read_text())
    (ended_stack / "stack.json").unlink()
    for name in ("servers", "policy_url", "generation_port"):
        value = record["settings"][name]
        given = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv(f"TURNPOINT_{name.upper()}", given)
    monkeypatch.setenv("TURNPOINT_RAY_ADDRESS", "127.0.0.1:26905")
    assert cli.run(words) == EXIT_NOT_REACHABLE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "ray_unreachable" and "127.0.0.1:26905" in error["message"]


def test_save_without_temporal_is_4(ended_stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["save", "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_NOT_REACHABLE
    assert "127.0.0.1:26904" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("name", ["latest", "snapshot_000001"])
def test_a_save_cannot_be_called_what_means_another_snapshot(
    name: str, ended_stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["save", "--name", name, "--json", "--state-dir", str(ended_stack)]
    assert cli.run(words) == EXIT_USAGE
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert message.startswith("name: ") and "mean something else" in message


def test_a_restore_into_the_running_job_is_refused_and_names_the_ways_out(
    ended_stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def running(*_: object) -> ControllerStatus:
        return status()

    monkeypatch.setattr(job_runs, "controller_status", running)
    assert cli.run(["restore", "--json", "--state-dir", str(ended_stack)]) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "refused" and "incarnation 3" in error["message"]
    for way in ("restore --replace", "down", "save"):
        assert f"`turnpoint {way}`" in error["message"]


@pytest.mark.parametrize("words", [["save"], ["restore", "--replace"]])
@pytest.mark.parametrize("ui", ["http://127.0.0.1:26906", None])
def test_an_interrupted_save_or_restore_names_the_workflow_that_goes_on(
    words: list[str],
    ui: str | None,
    ended_stack: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Break: leave it to the sentence that holds for every command."""
    ids: list[str] = []

    async def connected(*_: object) -> None:
        pass

    async def begun(client: object, workflow: str, given: object, id: str) -> None:
        ids.append(id)

    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(job_runs, "connect", connected)
    monkeypatch.setattr(job_runs, "start", begun)
    monkeypatch.setattr(job_runs, "follow", interrupted)
    if ui is not None:
        monkeypatch.setenv("TURNPOINT_TEMPORAL_UI", ui)
    assert cli.run([*words, "--json", "--state-dir", str(ended_stack)]) == 130
    error = json.loads(capsys.readouterr().out)["error"]
    page = f"{ui}/namespaces/default/workflows/{quote(ids[0], safe='')}"
    where = "look at it, or cancel it, in the Temporal UI" if ui is None else page
    assert error == {
        "code": "interrupted",
        "message": f"interrupted; workflow {ids[0]} goes on: {where}",
    }
