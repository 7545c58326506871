"""Following a workflow: what its end is told as."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError

from activities.contract import PhaseReport, Progress, SaveInput, SaveResult
from workers import job_runs
from workers.cli_output import EXIT_FAILED, EXIT_REFUSED
from workers.errors import WorkerRoomError
from workers.settings import Settings
from workers.workflow_runs import WorkflowFailed, follow


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
    """Break: workers/workflow_runs.py: leave the reason out."""
    with pytest.raises(WorkflowFailed) as caught:
        await follow(Ended(cause), SaveResult, lambda _: None)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert said in str(caught.value) and "demo/save/1" in str(caught.value)
    assert "secret" not in str(caught.value)


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
    """Exit code 3 says that a job was left as it was. Break: workers/job_runs.py: go by the type.

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
