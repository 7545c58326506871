"""Inventories of exactly one commit or restore, and the lease of a save."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gym.protocol import (
    Kind,
    StaleCheckpoint,
    StaleInstance,
    TurnpointError,
)
from rl.nemo_gym import restore as restore_phases
from rl.nemo_gym.fleet import Fleet
from rl.nemo_gym.service import NemoGymService
from tests.rl.gym_fakes import FakeFleet
from workflows.restore_snapshot import ABOUT_THE_SNAPSHOT

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


def _file(path: str) -> dict[str, object]:
    return {"path": path, "bytes": 10, "records": 1, "sha256": SHA}


async def test_the_inventory_is_that_of_exactly_one_commit(fakes: FakeFleet, fleet: Fleet) -> None:
    service = NemoGymService(fleet)
    line = {
        "rollout_id": "p7_g2",
        "attempt_index": 0,
        "capture_key": "p7_g2",
        "last_committed_model_call_id": "call-2",
        "resource_state_revisions": {"counter": 3},
    }

    async def agent(body: dict) -> dict:
        answer = fakes["agent_a"].default("commit", body)
        files = [_file("gym/agent_a/continuations.jsonl")]
        return {**answer, "files": files, "continuations": [line]}

    async def counter(body: dict) -> dict:
        session = {"rollout_id": "p7_g2", "attempt_index": 0, "revision": 3}
        return {**fakes["counter"].default("commit", body), "sessions": [session]}

    fakes["agent_a"].scripts["commit"] = agent
    fakes["counter"].scripts["commit"] = counter
    fakes["agent_a"].parked = 1
    with pytest.raises(StaleCheckpoint):
        await service.inventory(CHECKPOINT)
    service._lease = (CHECKPOINT, math.inf)
    answers = await service.commit(CHECKPOINT, 5, Path("/s"))
    assert answers.continuations == 1
    assert [file.path for file in answers.files] == ["gym/agent_a/continuations.jsonl"]
    assert {report.server: report.bytes for report in answers.servers}["agent_a"] == 10
    inventory = await service.inventory(CHECKPOINT)
    assert inventory.line_counts == {"agent_a": 1, "agent_b": 0}
    assert [line.rollout_id for line in inventory.continuations["agent_a"]] == ["p7_g2"]
    assert inventory.continuations["agent_b"] == []
    assert set(inventory.sessions) == {"counter", "tools"}
    assert inventory.sessions["counter"][0].revision == 3
    assert set(inventory.storage) == {"policy_model", "judge"}
    with pytest.raises(StaleCheckpoint):
        await service.inventory("another")


@pytest.mark.parametrize(
    ("trouble", "code"), [("silent", "server_unreachable"), ("restarted", "stale_instance")]
)
async def test_an_agent_that_does_not_count_its_runs_is_no_fault_of_the_snapshot(
    fakes: FakeFleet, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, trouble: str, code: str
) -> None:
    """It dies, or is slow, right after it has restored its part.

    Break: rl/nemo_gym/service.py: say that the inventories disagree; an intact snapshot is then
    given up for an older one.
    """
    monkeypatch.setattr(restore_phases, "ANSWER_S", 0.3)

    async def restored(body: dict) -> dict:
        answer = fakes["agent_b"].default("restore", body)
        if trouble == "silent":
            fakes["agent_b"].hang("status")
        else:
            fakes["agent_b"].fail("status", *[StaleInstance("another life")] * 99)
        return answer

    fakes["agent_b"].scripts["restore"] = restored
    with pytest.raises(TurnpointError) as caught:
        await NemoGymService(fleet).restore("restore-1", CHECKPOINT, Path("/s"), [])
    assert (caught.value.code, caught.value.participant) == (code, "agent_b")
    assert caught.value.code not in ABOUT_THE_SNAPSHOT


async def test_renewing_before_all_kinds_are_prepared_counts_as_held(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    service = NemoGymService(fleet)
    fakes["policy_model"].holder = CHECKPOINT
    assert await service.renew(CHECKPOINT, 3)
    await service.prepare(CHECKPOINT, 5, 5)
    assert await service.renew(CHECKPOINT, 3)
    fakes["counter"].holder = None
    assert not await service.renew(CHECKPOINT, 3)


async def test_no_server_is_asked_any_more_once_the_saves_lease_has_ended(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    """Invariant 3. Break: rl/nemo_gym/service.py: drop `left_s <= 0` from `_lease_left_s`."""
    service = NemoGymService(fleet)
    fakes["policy_model"].hang("prepare", 0.4)
    with pytest.raises(StaleCheckpoint):
        await service.prepare(CHECKPOINT, 5, 0.3)
    assert fakes.kinds("prepare") == [Kind.MODEL]
    with pytest.raises(StaleCheckpoint):
        await service.commit(CHECKPOINT, 5, Path("/s"))
    assert fakes.kinds("commit") == []
