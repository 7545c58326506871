"""How long each kind of activity may take, and what is retried (design sections 4 and 9).

Quick retries (50 to 200 ms) happen inside an activity; Temporal's, which cost a second at least,
are for a worker that died. A server that an activity has tried for as long as it may is not tried
again: meanwhile all others stand still. An activity whose phase has a deadline ends with it.
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
"""Past the deadline, for the answer of an activity that used its budget to the end."""

_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    maximum_interval=timedelta(seconds=2),
    non_retryable_error_types=[ServerUnreachable.code, NotJoined.code],
)

TRIES_IN_PAUSE = 10
"""All stand still: an error of nobody's (`internal`) that comes at each try fails the save within
fifteen seconds, and not at the phase's deadline. As many workers may die over one phase, or
Temporal be away for longer than a heartbeat."""


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


def within(limit: timedelta) -> dict[str, Any]:
    """Options of an activity that stands alone: all its tries end within `limit`."""
    return _options(workflow.now() + limit, _RETRY)


ON_DISK: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(minutes=10),
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=10),
    "retry_policy": _RETRY,
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}
"""Outside the pause, where nobody waits: pruning."""
