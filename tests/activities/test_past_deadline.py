"""A phase whose deadline has passed before it starts asks nobody anything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import contract, driving
from activities.gym import GymActivities
from gym.client import GymClient
from gym.protocol import DeadlineExceeded, PrepareRequest
from tests.rl.folder_cases import config_of


async def test_a_deadline_in_the_past_is_typed_and_nothing_stands_still(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: ask the NemoGym actor with what is left below zero."""
    asked: list[str] = []

    async def call(name: str, method: str, *_: Any, **__: Any) -> None:
        asked.append(method)

    async def beat(*_: Any) -> None:
        """Send no heartbeat."""

    monkeypatch.setattr("activities.gym.call", call)
    monkeypatch.setattr(driving, "_beat", beat)
    activities = GymActivities(cast(Client, None), config_of(tmp_path), cast(GymClient, None))
    request = contract.PrepareCheckpointRequest(
        job_id="job-1",
        checkpoint_id="c1",
        incarnation=1,
        lease_s=5,
        deadline=datetime(1970, 1, 1, tzinfo=UTC) - timedelta(seconds=1),
    )
    environment = ActivityEnvironment()
    with pytest.raises(DeadlineExceeded, match="no time is left"):
        await environment.run(activities.prepare_checkpoint, request)
    assert asked == []


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_server_takes_no_budget_that_is_no_time(budget_s: float) -> None:
    ids: dict[str, Any] = {"incarnation": 1, "instance_id": "i", "checkpoint_id": "c"}
    with pytest.raises(ValidationError, match="budget_s"):
        PrepareRequest(**ids, budget_s=budget_s, lease_s=5)
