"""Starting and following a workflow: each end is a typed error or the result."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import SaveInput, SaveOutcome, SaveResult
from tests.workers.job.ended_workflow import Ended
from workers.errors import NotRunning, TemporalRefused
from workers.job import workflows as workflow_runs
from workers.job.workflows import WorkflowFailed, follow, start


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


async def test_the_wait_for_a_temporal_that_stays_away_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow_runs, "SILENCE_TIMEOUT_S", 0.05)
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
