"""What an operator sees of a workflow: details table, search attributes, typed failures.

Guarantees: a failure carries a stable type and one sentence, never a value of the input; an
input that does not parse fails its workflow at once with the fields named (design section 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TimeoutError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():  # pure pydantic: costs 6 to 57 ms a run otherwise
    from pydantic import BaseModel, ValidationError

    from activities.contract import JOB_ATTRIBUTE, PhaseReport

JOB = SearchAttributeKey.for_keyword(JOB_ATTRIBUTE)
SNAPSHOT = SearchAttributeKey.for_keyword("TurnpointSnapshot")
OUTCOME = SearchAttributeKey.for_keyword("TurnpointOutcome")
PAUSE_MS = SearchAttributeKey.for_int("TurnpointPauseMs")
PARKED = SearchAttributeKey.for_int("TurnpointParkedRollouts")
BYTES = SearchAttributeKey.for_int("TurnpointBytes")
SEARCH_ATTRIBUTES: Sequence[SearchAttributeKey[Any]] = (
    JOB,
    SNAPSHOT,
    OUTCOME,
    PAUSE_MS,
    PARKED,
    BYTES,
)

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")


def parsed(model: type[Model], given: Any) -> Model:
    """The input as a model.

    Raises:
        ApplicationError: type `invalid_request`; every field that does not fit is named, no
            value is shown.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'input'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        ]
    raise ApplicationError(
        f"{model.__name__}: {'; '.join(problems)}", type="invalid_request", non_retryable=True
    )


class Journal:
    """The phases of one workflow as they go by."""

    def __init__(self, phases: Sequence[str]) -> None:
        """Start with every phase of the table still to come."""
        self.current: str | None = None
        self.done: list[PhaseReport] = []
        self._planned = list(phases)
        self._heading = ""

    def heading(self, text: str) -> None:
        """The sentence above the table."""
        self._heading = text
        self._show()

    def enter(self, phase: str) -> None:
        """A phase begins."""
        self.current = phase
        self._show()

    def leave(self, report: PhaseReport) -> None:
        """A phase has ended well."""
        self.current = None
        self.done.append(report)
        self._show()

    def note(self, *updates: SearchAttributeUpdate[Any]) -> None:
        """Set search attributes."""
        workflow.upsert_search_attributes(list(updates))

    def _show(self) -> None:
        workflow.set_current_details(self.markdown())

    def markdown(self) -> str:
        """The table that the Temporal UI shows while the workflow runs and afterwards."""
        lines = [self._heading, "", "| phase | ms | servers |", "|---|---:|---|"]
        done = {report.phase: report for report in self.done}
        planned = [*self._planned, *(phase for phase in done if phase not in self._planned)]
        if self.current and self.current not in planned:
            planned.append(self.current)
        for phase in planned:
            if report := done.get(phase):
                lines.append(f"| {phase} | {report.ms:.0f} | {_servers(report)} |")
            elif phase == self.current:
                lines.append(f"| **{phase}** | running | |")
            else:
                lines.append(f"| {phase} | | |")
        return "\n".join(lines)


def _servers(report: PhaseReport) -> str:
    cells = []
    for server in report.servers:
        counts = server.counts.model_dump(exclude_defaults=True)
        parts = [f"{server.ms:.0f} ms", *(f"{count} {name}" for name, count in counts.items())]
        if server.bytes:
            parts.append(f"{server.bytes} bytes")
        if server.note:
            parts.append(server.note)
        cells.append(f"{server.server} ({', '.join(parts)})")
    return ", ".join(cells)


def reason_of(error: BaseException) -> ApplicationError:
    """The failure that a workflow ends with: the activity's own type and sentence.

    Temporal wraps it ("Activity task failed"); an operator should not have to unfold that.
    """
    cause: BaseException | None = error
    while isinstance(cause, ActivityError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, TimeoutError) and isinstance(cause.cause, ApplicationError):
        # No time was left for another try: what the last one failed with says why.
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        return ApplicationError(
            cause.message, *cause.details, type=cause.type or "internal", non_retryable=True
        )
    if isinstance(cause, TimeoutError):
        phase = error.activity_type if isinstance(error, ActivityError) else "an activity"
        return ApplicationError(
            f"{phase} did not end by its deadline: look at the worker's log",
            type="deadline_exceeded",
            non_retryable=True,
        )
    return ApplicationError(type(cause).__name__, type="internal", non_retryable=True)


def was_cancelled(error: BaseException) -> bool:
    """Whether the workflow (or an activity on its behalf) was cancelled."""
    return isinstance(error, (asyncio.CancelledError, CancelledError)) or (
        isinstance(error, Exception) and is_cancelled_exception(error)
    )


def stop_if_cancelled() -> None:
    """Raise if the workflow was cancelled.

    Asked after each activity: one that ended well before it heard of the cancellation takes the
    cancellation with it (the SDK waits for it, and then returns its result).
    """
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


async def shielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end whatever number of cancellations arrive, and answer its result."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
        except Exception:
            break  # raised again by result() below
    return task.result()
