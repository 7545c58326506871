"""A handle of a workflow that has failed."""

from __future__ import annotations

from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowQueryRejectedError
from temporalio.exceptions import FailureError

from activities.contract import Progress


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
