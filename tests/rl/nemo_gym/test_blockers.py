"""The error of a save that is not ready lists every blocker."""

from __future__ import annotations

import time

import pytest

from gym.protocol import (
    NotReady,
)
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet, lease_left

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


async def test_not_ready_names_every_blocker_of_the_kind_and_no_later_kind_is_asked(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    for name, where in (("agent_a", "model_call"), ("agent_b", "tool")):

        async def script(body: dict, name: str = name, where: str = where) -> dict:
            answer = fakes[name].default("prepare", body)
            blocker = {"rollout_id": f"p_{name}", "attempt_index": 2, "where": where, "age_s": 7.5}
            return {**answer, "ready": False, "blockers": [blocker], "blocker_count": 1}

        fakes[name].scripts["prepare"] = script
    with pytest.raises(NotReady) as refused:
        await save_phases.prepare(fleet, CHECKPOINT, 5, lease_left)
    assert refused.value.details["blockers"] == [
        {
            "server": name,
            "rollout_id": f"p_{name}",
            "attempt_index": 2,
            "where": where,
            "age_s": 7.5,
        }
        for name, where in (("agent_a", "model_call"), ("agent_b", "tool"))
    ]
    assert "counter" not in fakes.asked("prepare")


async def test_a_server_that_does_not_answer_is_a_blocker_at_the_deadline(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes["agent_a"].hang("prepare")
    await fakes["agent_b"].stop()
    started = time.monotonic()
    with pytest.raises(NotReady) as refused:
        await save_phases.prepare(fleet, CHECKPOINT, 0.8, lease_left)
    assert 0.4 < time.monotonic() - started < 1.5
    blockers = refused.value.details["blockers"]
    assert [(b["server"], b["where"]) for b in blockers] == [
        ("agent_a", "no_answer"),
        ("agent_b", "no_answer"),
    ]


async def test_calls_still_in_flight_at_the_deadline_are_blockers(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes["counter"].in_flight = 1
    with pytest.raises(NotReady) as refused:
        await save_phases.prepare(fleet, CHECKPOINT, 2, lease_left)
    (blocker,) = refused.value.details["blockers"]
    assert (blocker["server"], blocker["where"]) == ("counter", "in_flight")
