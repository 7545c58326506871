"""Timeouts and retries of activities (design sections 4 and 9).

Quick retries (50 to 200 ms) happen inside an activity; Temporal's, which cost a second at least,
are for a worker that died. A server that an activity could not reach in its time is not tried
again, because all rollouts wait meanwhile. An activity of a phase ends with the phase's deadline.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from gym.protocol import NotJoined, ServerUnreachable

HEARTBEAT_IN_PAUSE = timedelta(seconds=2)
"""A killed worker's activity goes on elsewhere after this (reference measurement: 2 s instead
of 11 s, together with a sticky timeout of 1 s)."""
REPLY_GRACE = timedelta(seconds=5)
"""Past the deadline, for the answer of an activity that used its time to the end."""

_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    maximum_interval=timedelta(seconds=2),
    non_retryable_error_types=[ServerUnreachable.code, NotJoined.code],
)

TRIES_IN_PAUSE = 10
"""Rollouts are paused: an unexpected error (`internal`) that repeats fails the save in about 15 s,
not at the phase's deadline. A dead worker, or a Temporal away for longer than a heartbeat, also
costs a try."""


def until(deadline: datetime) -> dict[str, Any]:
    """Options of an activity of a phase: all its tries end with the phase's deadline."""
    return _options(deadline, replace(_RETRY, maximum_attempts=TRIES_IN_PAUSE))


def _options(deadline: datetime, retry: RetryPolicy) -> dict[str, Any]:
    left = max(deadline - workflow.now(), timedelta(milliseconds=1)) + REPLY_GRACE
    return {
        "schedule_to_close_timeout": left,
        "start_to_close_timeout": left,
        "heartbeat_timeout": HEARTBEAT_IN_PAUSE,
        "retry_policy": retry,
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    }


def within(timeout: timedelta) -> dict[str, Any]:
    """Options of an activity outside a phase with a deadline: all its tries end in `timeout`."""
    return _options(workflow.now() + timeout, _RETRY)


ON_DISK: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(minutes=10),
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=10),
    "retry_policy": _RETRY,
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}
"""Pruning, outside the pause: no rollout waits for it."""
