"""Starting saves and restores on Temporal, and following them by their phases.

Ctrl-C only stops following: the workflow goes on, and Temporal keeps its result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import TASK_QUEUE, Progress
from workers.errors import NotRunning, Refused, WorkerRoomError
from workers.temporal import typed_refusals

Result = TypeVar("Result", bound=BaseModel)
OnProgress = Callable[[Progress], None]

LOOK_EVERY_S = 0.2
SILENCE_TIMEOUT_S = 60.0
"""A killed worker is replaced within seconds; a longer silence is an error."""
QUERY_TIMEOUT = timedelta(seconds=2)
_PASSES = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED}
"""Temporal is out of reach. The SDK waits 5 to 10 s for it, a restart may take longer."""


class WorkflowFailed(WorkerRoomError):
    """A save or restore ended with a typed failure.

    Args:
        type: The failure's stable type.
        message: Its sentence.
        workflow_id: Where the UI shows it.
    """

    def __init__(self, type: str, message: str, workflow_id: str) -> None:
        super().__init__(f"{type}: {message} (workflow {workflow_id})")
        self.code = type  # type: ignore[misc]
        self.type = type
        self.workflow_id = workflow_id


def workflow_id(job_id: str, what: str, name: str | None = None) -> str:
    """`<job_id>/<what>/<time or name>` (design section 9)."""
    now = datetime.now(UTC)
    return f"{job_id}/{what}/{name or now.strftime('%Y-%m-%dT%H-%M-%S.') + f'{now:%f}'[:3]}"


async def start(
    client: Client, workflow: str, given: BaseModel, id: str
) -> WorkflowHandle[Any, Any]:
    """Start a workflow on the snapshot workers' task queue.

    Raises:
        Refused: One of this id runs already.
        TemporalRefused: Temporal does not take it.
    """
    try:
        with typed_refusals():
            return await client.start_workflow(workflow, given, id=id, task_queue=TASK_QUEUE)
    except WorkflowAlreadyStartedError:
        raise Refused(f"a workflow {id} runs already; look at it in the Temporal UI") from None


async def follow(
    handle: WorkflowHandle[Any, Any], result_type: type[Result], on_progress: OnProgress
) -> Result:
    """Wait for a workflow and show its phases as they go by, also while Temporal is restarted.

    Raises:
        WorkflowFailed: It failed, was cancelled or terminated.
        NotRunning: No worker has answered a query for `SILENCE_TIMEOUT_S`.
        TemporalRefused: Temporal does not know it any more.
    """
    ending = asyncio.create_task(handle.result())
    silent_since = time.monotonic()
    try:
        while not ending.done():
            await asyncio.wait({ending}, timeout=LOOK_EVERY_S)
            if (progress := await progress_of(handle)) is not None:
                on_progress(progress)
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > SILENCE_TIMEOUT_S:
                raise NotRunning(
                    f"no worker has answered for {SILENCE_TIMEOUT_S:.0f} s about workflow "
                    f"{handle.id}, which goes on by itself once one does; look at `turnpoint "
                    "status` and `turnpoint logs worker_1`"
                )
            if _out_of_reach(ending):
                ending = asyncio.create_task(handle.result())
        with typed_refusals():
            return result_type.model_validate(ending.result())
    except WorkflowFailureError as error:
        raise _failed(error, handle.id) from None
    finally:
        ending.cancel()


def _out_of_reach(ending: asyncio.Task[Any]) -> bool:
    if not ending.done() or ending.cancelled():
        return False
    error = ending.exception()
    return isinstance(error, RPCError) and error.status in _PASSES


async def progress_of(handle: WorkflowHandle[Any, Any]) -> Progress | None:
    """The phases of a workflow so far; None if no worker answers for it at this moment."""
    try:
        found: Progress = await handle.query(
            "progress", result_type=Progress, rpc_timeout=QUERY_TIMEOUT
        )
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None  # the workflow's result decides, not this query
    return found


def _failed(error: WorkflowFailureError, id: str) -> WorkflowFailed:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return WorkflowFailed(cause.type or "failed", cause.message, id)
    if isinstance(cause, CancelledError):
        return WorkflowFailed("cancelled", "the workflow was cancelled", id)
    if isinstance(cause, TerminatedError):
        # The reason names the workflow that superseded it, or is the operator's own words.
        return WorkflowFailed("terminated", f"the workflow was ended: {cause.message}", id)
    return WorkflowFailed("failed", type(cause).__name__, id)


async def is_running(client: Client, id: str, run_id: str) -> bool:
    """True if one run of a workflow has not ended; a run that Temporal does not know has."""
    try:
        described = await client.get_workflow_handle(id, run_id=run_id).describe()
    except RPCError as error:
        # Any other error proves nothing: it may still be running.
        return error.status != RPCStatusCode.NOT_FOUND
    return described.status == WorkflowExecutionStatus.RUNNING
