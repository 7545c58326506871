"""Refused inputs, typed failures and shielded work of a workflow.

Guarantees: a failure carries a stable type and one sentence, never a value of the input; an
input that does not parse fails its workflow at once with the fields named (design section 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TimeoutError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():  # pure pydantic: costs 6 to 57 ms a run otherwise
    from pydantic import BaseModel, ValidationError

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


def reason_of(error: BaseException) -> ApplicationError:
    """The failure that a workflow ends with: the activity's own type and sentence.

    Temporal wraps it in "Activity task failed"; an operator sees the reason without unfolding it.
    """
    cause: BaseException | None = error
    while isinstance(cause, ActivityError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, TimeoutError) and isinstance(cause.cause, ApplicationError):
        # No time was left for another try: the failure of the last one is the reason.
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
    """True if the workflow, or an activity on its behalf, was cancelled."""
    return isinstance(error, (asyncio.CancelledError, CancelledError)) or (
        isinstance(error, Exception) and is_cancelled_exception(error)
    )


def stop_if_cancelled() -> None:
    """Raise `CancelledError` if the workflow was cancelled.

    Called after each activity: the SDK waits for an activity that it cancels and returns the
    result of one that ends well all the same; the cancellation would be lost with it.
    """
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


async def shielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end, however many cancellations arrive, and return its result."""
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
