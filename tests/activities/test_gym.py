"""Opening again after a save, with NemoGym and the controller given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import gym as gym_activities
from activities.contract.save import ResumeRequest, ResumeResult
from activities.gym import GymActivities
from gym.client import GymClient
from rl.errors import ActorLost
from rl.messages import NEMO_GYM, SINGLE_CONTROLLER
from tests.activities.not_driven import not_driven
from tests.rl.folder_cases import config_of


@pytest.mark.parametrize("lost", [{NEMO_GYM}, {NEMO_GYM, SINGLE_CONTROLLER}])
async def test_only_servers_that_could_not_be_opened_are_left_to_their_leases(
    lost: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: activities/gym.py: note that the worker itself has opened the servers.

    A save with a note tells that its rollouts wait for the end of their leases.
    """
    opened: list[str] = []

    async def call(name: str, method: str, *_: Any, **__: Any) -> Any:
        if name in lost:
            raise ActorLost("it died", participant=name)
        return 0.5 if method == "resume_checkpoint" else []

    async def resume_servers(*words: Any) -> list[Any]:
        opened.append(words[3])
        return []

    monkeypatch.setattr("activities.group.driving", not_driven)
    for module in ("rl.controller.client", "rl.nemo_gym.client"):
        monkeypatch.setattr(f"{module}.call", call)
    monkeypatch.setattr(gym_activities, "resume_servers", resume_servers)
    activities = GymActivities(cast(Client, None), config_of(tmp_path), cast(GymClient, None))
    request = ResumeRequest(job_id="job-1", checkpoint_id="c" * 8, incarnation=1)
    answer = cast(
        ResumeResult,
        await ActivityEnvironment().run(activities.resume_checkpoint, request),
    )
    if SINGLE_CONTROLLER in lost:
        assert answer.note is not None and opened == []
    else:
        assert (answer.note, answer.pause_s, opened) == (None, 0.5, ["c" * 8])
