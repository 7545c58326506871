"""Failures of activities as a workflow reports them, without a server."""

from __future__ import annotations

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    RetryState,
    TimeoutError,
    TimeoutType,
)

from workflows.failures import reason_of


def failed(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "Activity task timed out",
        scheduled_event_id=5,
        started_event_id=6,
        identity="",
        activity_type="begin_checkpoint",
        activity_id="1",
        retry_state=RetryState.TIMEOUT,
    )
    error.__cause__ = cause
    return error


def timed_out(cause: BaseException | None) -> TimeoutError:
    error = TimeoutError(
        "Not enough time to schedule next retry before activity ScheduleToClose timeout, giving up "
        "retrying",
        type=TimeoutType.SCHEDULE_TO_CLOSE,
        last_heartbeat_details=[],
    )
    error.__cause__ = cause
    return error


def test_an_error_that_lasts_until_the_deadline_keeps_its_type_and_sentence() -> None:
    """Temporal 1.32 wraps the last failure so. Break: workflows/failures.py: see a timeout."""
    ray = ApplicationError("nobody listens at RAY_ADDRESS", {"a": 1}, type="ray_unreachable")
    reason = reason_of(failed(timed_out(ray)))
    assert (reason.type, reason.message) == ("ray_unreachable", "nobody listens at RAY_ADDRESS")
    assert reason.details == ({"a": 1},)
    assert reason.non_retryable


def test_an_activity_that_never_answered_names_its_phase() -> None:
    for cause in (None, timed_out(None)):
        reason = reason_of(failed(timed_out(cause)))
        assert reason.type == "deadline_exceeded"
        assert reason.message.startswith("begin_checkpoint did not end")
