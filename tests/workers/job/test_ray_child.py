"""A look into Ray: its content, and how soon it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym.protocol import DeadlineExceeded
from rl import living_actors
from rl.messages import SINGLE_CONTROLLER
from tests.rl.folder_cases import config_of
from tests.workers.observations import cluster_view, observation
from workers.job import ray_child
from workers.supervisor.decide import RAY, SILENT_S, Recover, Wait, decide
from workers.supervisor.observe import ANSWER_TIMEOUT_S
from workers.supervisor.supervisor import LOOK_EVERY_S


async def test_a_silent_controller_is_not_taken_for_a_lost_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is heard of once a look is over, and by when that look began.

    Break: workers/job/ray_child.py: wait as long for the status as a claim does (30 s).
    """
    limits: list[float] = []

    async def silent(name: str, method: str, *_: Any, timeout_s: float) -> None:
        assert (name, method) == (SINGLE_CONTROLLER, "status")
        limits.append(timeout_s)
        raise DeadlineExceeded("no answer")

    async def names() -> list[str]:
        return [SINGLE_CONTROLLER]

    monkeypatch.setattr("rl.controller.client.call", silent)
    monkeypatch.setattr(living_actors, "names", names)
    found, _ = await ray_child.look(config_of(tmp_path))
    assert found.reachable and found.silent

    one_look_s = limits[0] + ray_child.LOOK_EVERY_S
    unheard_s = 2 * one_look_s + ANSWER_TIMEOUT_S + LOOK_EVERY_S
    there = cluster_view(None, silent=True)
    look = observation(job=there, owned={RAY}, unreachable_s=unheard_s, silent_s=SILENT_S - 1)
    assert decide(look) == Wait()
    gone = decide(
        observation(job=there, owned={RAY}, unreachable_s=unheard_s, silent_s=SILENT_S + 1)
    )
    assert isinstance(gone, Recover) and not gone.ray_is_lost
