"""Retries that Temporal itself makes, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from temporalio import workflow

from activities.errors import application_error
from gym.protocol import NotJoined, ServerUnreachable, TurnpointError
from rl.errors import DataPlaneBusy, RayUnreachable
from workflows.options import ON_DISK, until, within

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_in_the_pause_nothing_is_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the cut came again every two seconds for 300 s, with all rollouts waiting.

    Break: workflows/options.py: leave the end of the tries to the deadline.
    """
    monkeypatch.setattr(workflow, "now", lambda: NOW)
    retry = until(NOW + timedelta(seconds=300))["retry_policy"]
    pauses_s = [0.1 * 2**n for n in range(retry.maximum_attempts - 1)]
    assert 0 < sum(min(max(pause_s, 1), 2) for pause_s in pauses_s) < 15
    opening_again = within(timedelta(seconds=60))["retry_policy"]
    assert opening_again.maximum_attempts == 0, "what ends a pause is tried for all of its time"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ServerUnreachable("no answer"), False),
        (NotJoined("another life"), False),
        (RayUnreachable("no cluster"), True),
        (DataPlaneBusy("TransferQueue's save has not returned"), True),
    ],
)
def test_a_server_tried_for_a_whole_lease_is_not_tried_again_by_temporal(
    monkeypatch: pytest.MonkeyPatch, error: TurnpointError, again: bool
) -> None:
    """A dead one would keep the others paused until the commit's deadline, 300 s.

    Break: workflows/options.py: leave it to whether the same call could succeed later.
    """
    monkeypatch.setattr(workflow, "now", lambda: NOW)
    failure = application_error(error)
    for options in (until(NOW), within(timedelta(seconds=1)), ON_DISK):
        never = options["retry_policy"].non_retryable_error_types
        assert (not failure.non_retryable and failure.type not in never) is again
