"""Following a workflow: what its end is told as."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowQueryRejectedError
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError

from activities.contract import SaveResult
from workers.workflow_runs import WorkflowFailed, follow


class Ended:
    """The handle of a workflow that has failed."""

    id = "demo/save/1"

    def __init__(self, cause: FailureError) -> None:
        self._cause = cause

    async def result(self) -> Any:
        raise WorkflowFailureError(cause=self._cause)

    async def query(self, *_: Any, **__: Any) -> Any:
        raise WorkflowQueryRejectedError(None)


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
