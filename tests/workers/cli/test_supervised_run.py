"""`turnpoint run` after SIGTERM: the last save, and the stack stopped or left up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.workers.observations import cluster_view, observation
from workers.cli import app as cli
from workers.cli import supervised_run
from workers.cli.output import EXIT_TERMINATED
from workers.config.settings import Settings
from workers.errors import StackBusy
from workers.job import commands as job_runs
from workers.job.cluster_view import ClusterView
from workers.job.restarts import Restarter
from workers.stack.stack import Stack
from workers.supervisor.decide import Observation
from workers.supervisor.event_log import LastSave
from workers.supervisor.observe import Observer

LOG = Path(".turnpoint/logs/supervisor.log")


def test_sigterm_while_the_job_is_brought_back_saves_nothing_and_says_so(
    look: list[ClusterView], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: save whenever there is a supervisor, and wait for a controller that is not there."""
    look.append(cluster_view(None))
    monkeypatch.setenv("TURNPOINT_CONTROL_TOKEN", "t" * 40)
    begun: list[bool] = []

    async def begin(*_: Any, **options: Any) -> job_runs.Begun:
        begun.append(options.get("replace", False))
        if len(begun) > 1:  # the restore of the job that was lost
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        return job_runs.Begun(incarnation=3, restored=None)

    async def lost(*_: Any, recovering: bool, **__: Any) -> Observation:
        return observation(recovering=recovering, gone=set() if recovering else {"counter"})

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    async def save(*_: Any) -> None:
        raise AssertionError("there is no job to save")

    monkeypatch.setattr(job_runs, "begin", begin)
    monkeypatch.setattr(job_runs, "has_snapshot_on_line", lambda _: True)
    monkeypatch.setattr(Observer, "observe", lost)
    monkeypatch.setattr(Restarter, "restart", nothing)
    monkeypatch.setattr(supervised_run, "last_save", save)
    monkeypatch.setenv("TURNPOINT_POLICY_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("TURNPOINT_GENERATION_PORT", "1")
    assert cli.run(["run", "--json"]) == EXIT_TERMINATED
    assert begun == [False, True]
    summary = json.loads(capsys.readouterr().out)
    assert summary["state"] == "terminated"
    assert summary["last_save"] == {
        "outcome": "none",
        "snapshot": None,
        "reason": "the job was not running at that moment",
    }


class Terminated:
    """A job that runs until its SIGTERM; `down` meets a stack that is busy, again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy = 0
        self.let_go: list[Restarter] = []
        self.now: Settings | None = None
        self.saved_with: list[Settings] = []
        for name, value in (
            ("CONTROL_TOKEN", "t" * 40),
            ("POLICY_URL", "http://127.0.0.1:1/v1"),
            ("GENERATION_PORT", "1"),
        ):
            monkeypatch.setenv(f"TURNPOINT_{name}", value)

        async def begin(*_: Any, **__: Any) -> job_runs.Begun:
            return job_runs.Begun(incarnation=3, restored=None)

        async def look(observer: Observer, *_: Any, **__: Any) -> Observation:
            observer.settings = self.now = observer.settings.model_copy(
                update={"temporal_address": "127.0.0.1:2"}
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return observation()

        async def save(settings: Settings, *_: Any) -> LastSave:
            self.saved_with.append(settings)
            return LastSave(outcome="published", snapshot="snapshot_000004")

        def down(_: Stack) -> int:
            self.busy -= 1
            if self.busy >= 0:
                raise StackBusy("another command starts or stops the stack")
            return 9

        monkeypatch.setattr(job_runs, "begin", begin)
        monkeypatch.setattr(Observer, "observe", look)
        monkeypatch.setattr(supervised_run, "last_save", save)
        monkeypatch.setattr(supervised_run, "BUSY_PAUSE_S", 0.01)
        monkeypatch.setattr(Stack, "down", down)
        monkeypatch.setattr(Restarter, "let_go", lambda restarter: self.let_go.append(restarter))


@pytest.fixture
def terminated(look: list[ClusterView], monkeypatch: pytest.MonkeyPatch) -> Terminated:
    look.append(cluster_view(None))
    return Terminated(monkeypatch)


def test_sigterm_while_a_process_is_started_again_stops_the_stack_all_the_same(
    terminated: Terminated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its start holds the stack. Break: workers/cli/supervised_run.py: end with StackBusy."""
    terminated.busy = 3
    assert cli.run(["run", "--json", "--down"]) == EXIT_TERMINATED
    assert json.loads(capsys.readouterr().out)["last_save"]["outcome"] == "published"
    assert "the stack is stopped (9 processes)" in LOG.read_text()
    assert len(terminated.let_go) == 2  # the first start's, the supervisor's


def test_a_stack_that_stays_busy_is_left_up_and_said_to_be(
    terminated: Terminated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_run, "DOWN_TIMEOUT_S", 0.05)
    terminated.busy = 1_000_000
    assert cli.run(["run", "--json", "--down"]) == EXIT_TERMINATED
    assert "the stack stays up" in LOG.read_text()


def test_the_last_save_is_made_where_the_stack_is_now(terminated: Terminated) -> None:
    """It was started again. Break: workers/cli/supervised_run.py: save at the first addresses."""
    assert cli.run(["run", "--json"]) == EXIT_TERMINATED
    assert terminated.now is not None
    assert terminated.saved_with == [terminated.now]
