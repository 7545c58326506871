"""Following a workflow: what its end is told as."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import PhaseReport, Progress, SaveInput, SaveOutcome, SaveResult
from rl.messages import Workload
from workers.cli.output import EXIT_FAILED, EXIT_REFUSED
from workers.config.settings import Settings, load_settings
from workers.errors import NotRunning, TemporalRefused, WorkerRoomError
from workers.job import commands as job_runs
from workers.job import ray_client as ray_side
from workers.job import workflows as workflow_runs
from workers.job.workflows import WorkflowFailed, follow, start


class Ended:
    """The handle of a workflow that has failed."""

    id = "demo/save/1"

    def __init__(self, cause: FailureError, progress: Progress | None = None) -> None:
        self._cause, self._progress = cause, progress

    async def result(self) -> Any:
        raise WorkflowFailureError(cause=self._cause)

    async def query(self, *_: Any, **__: Any) -> Any:
        if self._progress is None:
            raise WorkflowQueryRejectedError(None)
        return self._progress


@pytest.mark.parametrize(
    ("cause", "code", "said"),
    [
        (TerminatedError("superseded by demo/restore/2"), "terminated", "by demo/restore/2"),
        (CancelledError("asked for"), "cancelled", "cancelled"),
        (ApplicationError("counter is not ready", type="not_ready"), "not_ready", "counter"),
        (FailureError("secret"), "failed", "FailureError"),
    ],
)
async def test_who_follows_is_told_how_a_workflow_was_ended_and_why(
    cause: FailureError, code: str, said: str
) -> None:
    """Break: workers/job/workflows.py: leave the reason out."""
    with pytest.raises(WorkflowFailed) as caught:
        await follow(Ended(cause), SaveResult, lambda _: None)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert said in str(caught.value) and "demo/save/1" in str(caught.value)
    assert "secret" not in str(caught.value)


class OutOfReach(Ended):
    """A handle whose Temporal fails the calls that wait for the result, then tells it."""

    def __init__(self, *statuses: RPCStatusCode) -> None:
        self._statuses, self._progress = list(statuses), None

    async def result(self) -> Any:
        if self._statuses:
            raise RPCError("secret", self._statuses.pop(0), b"")
        return {"outcome": "published", "checkpoint_id": "c"}


async def test_a_temporal_that_is_restarted_ends_no_following() -> None:
    """The SDK gives up after 5 to 10 s. Break: workers/job/workflows.py: let its error rise."""
    statuses = [RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED]
    result = await follow(OutOfReach(*statuses), SaveResult, lambda _: None)  # type: ignore[arg-type]
    assert result.outcome is SaveOutcome.PUBLISHED


async def test_a_temporal_that_has_lost_the_workflow_is_a_typed_error() -> None:
    """Break: workers/job/workflows.py: wait on for what will not come, or let an RPCError rise."""
    handle = OutOfReach(RPCStatusCode.NOT_FOUND)
    with pytest.raises(TemporalRefused, match="NOT_FOUND") as caught:
        await follow(handle, SaveResult, lambda _: None)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


async def test_nobody_waits_for_ever_for_a_temporal_that_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow_runs, "SILENCE_LIMIT_S", 0.05)
    handle = OutOfReach(*[RPCStatusCode.UNAVAILABLE] * 1_000_000)
    with pytest.raises(NotRunning, match="goes on by itself"):
        await follow(handle, SaveResult, lambda _: None)  # type: ignore[arg-type]


async def test_a_start_that_temporal_does_not_take_is_a_typed_error() -> None:
    """A supervisor tries again after it. Break: workers/job/workflows.py: let the RPCError rise."""

    class Away:
        async def start_workflow(self, *_: Any, **__: Any) -> None:
            raise RPCError("secret", RPCStatusCode.UNAVAILABLE, b"")

    with pytest.raises(TemporalRefused, match="UNAVAILABLE"):
        await start(cast(Client, Away()), "SaveSnapshot", SaveInput(job_id="demo"), "demo/save/1")


async def test_a_job_that_began_is_no_untyped_error_for_its_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who supervises adopts the job then. Break: workers/job/commands.py: let the RPCError rise."""

    async def begun(*_: Any, **__: Any) -> Any:
        return 2

    async def away(*_: Any) -> None:
        raise RPCError("secret", RPCStatusCode.UNAVAILABLE, b"")

    monkeypatch.setattr(ray_side, "start_fresh", begun)
    monkeypatch.setattr(job_runs, "connect", begun)
    monkeypatch.setattr(job_runs, "set_schedule", away)
    settings = load_settings(
        state_dir=tmp_path,
        servers=[{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:1"}],
        policy_url="http://127.0.0.1:1/v1",
        generation_port=1,
    )
    workload = Workload(dataset=Path("/rows.jsonl"))
    with pytest.raises(TemporalRefused):
        await job_runs.begin(settings, workload, fresh=True, on_progress=lambda _: None)


@pytest.mark.parametrize(
    ("type", "done", "incarnation", "refused"),
    [
        ("unchanged", ["begin_checkpoint"], None, True),
        ("no_space", ["begin_checkpoint"], None, True),
        ("no_space", ["begin_checkpoint", "close_admission", "resume_checkpoint"], None, False),
        ("job_alive", [], None, True),
        ("server_unfit", ["claim_job"], 3, False),
        ("not_ready", ["begin_checkpoint"], None, False),
    ],
)
async def test_a_failure_is_a_refusal_only_if_nothing_had_been_done(
    monkeypatch: pytest.MonkeyPatch,
    type: str,
    done: list[str],
    incarnation: int | None,
    refused: bool,
) -> None:
    """Exit code 3 says that a job was left as it was. Break: workers/job/commands.py: use the type.

    A disk that gets full in the pause, or a restore that has ended the old job, was no refusal.
    """
    reports = [PhaseReport(phase=phase, ms=1) for phase in done]
    ended = Ended(
        ApplicationError("told", type=type),
        Progress(phase=None, done=reports, incarnation=incarnation),
    )

    async def started(*_: object) -> Ended:
        return ended

    monkeypatch.setattr(job_runs, "connect", started)
    monkeypatch.setattr(job_runs, "start", started)
    with pytest.raises(WorkerRoomError) as caught:
        await job_runs.save(Settings(), SaveInput(job_id="demo"), lambda _: None)
    assert caught.value.code == type
    assert caught.value.exit_code == (EXIT_REFUSED if refused else EXIT_FAILED)
