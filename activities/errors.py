"""The one place where our errors become Temporal's.

Guarantees: the failure in a history has the error's stable code as its type, one sentence that
names server or file, and its details; a `TurnpointError` is retried only if its `retryable` is
true; any other error shows its class, never its text (which may hold anything).
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from pydantic import ValidationError
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from gym.protocol import TurnpointError

logger = logging.getLogger(__name__)


def application_error(error: Exception) -> ApplicationError:
    """Temporal's form of an error that ended an activity."""
    if isinstance(error, TurnpointError):
        where = f" [{error.participant}]" if error.participant else ""
        return ApplicationError(
            error.message + where,
            error.details,
            type=error.code,
            non_retryable=not error.retryable,
        )
    if isinstance(error, ValidationError):
        fields = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
        return ApplicationError(
            f"{error.title}: {fields} does not fit", type="invalid_request", non_retryable=True
        )
    return ApplicationError(
        f"{type(error).__name__}: see the worker's log", type="internal", non_retryable=False
    )


class TypedFailures(Interceptor):
    """Worker interceptor: every activity fails with `application_error`."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap one activity call."""
        return _TypedFailures(next)


class _TypedFailures(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except FailureError:
            raise
        except Exception as error:
            if not isinstance(error, TurnpointError):
                _log_fault(error)
            # The cause would put its text into the history.
            raise application_error(error) from None


def _log_fault(error: Exception) -> None:
    """Log the class and the last frames of an unexpected error, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    logger.error(
        "activity failed",
        extra={
            "event": "fault",
            "error": type(error).__name__,
            "at": [f"{frame.filename}:{frame.lineno}" for frame in frames],
        },
    )
