"""After the save, real servers keep nothing of a rollout that has failed for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gym.protocol import (
    CheckpointParked,
    CommitAnswer,
    Counts,
    Kind,
    Mode,
    Role,
    SessionUncertain,
)
from rl.messages import JoinedServer, RunRequest
from rl.nemo_gym import runs as gym_runs
from rl.nemo_gym.fleet import Fleet
from rl.nemo_gym.runs import Runs
from tests.gym import fleet as gym
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, NAMES, ROW
from tests.gym.meddling import Meddling, typed


def _joined(servers: gym.Fleet) -> list[JoinedServer]:
    return [
        JoinedServer(
            name=name,
            kind=servers.kinds[name],
            mode=Mode.EXPORT_RESTORE,
            role=Role.POLICY if servers.kinds[name] is Kind.MODEL else None,
            url=servers.urls[name],
            instance_id=servers.instances[name],
        )
        for name in NAMES
    ]


def _records(answers: dict[str, CommitAnswer]) -> dict[str, int]:
    return {
        file.path.rpartition("/")[2]: file.records or 0
        for answer in answers.values()
        for file in answer.files
    }


async def _counts(servers: gym.Fleet) -> dict[str, Counts]:
    return {name: (await servers.status(name)).counts for name in NAMES}


async def test_a_rollout_that_has_failed_for_good_is_in_no_later_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded (design section 6, `forget`).

    Break: rl/nemo_gym/runs.py: forget on the agent only; or on model and resources while a save
    has counted the run.
    """
    monkeypatch.setattr(gym_runs, "ACKNOWLEDGE_S", 0.3)
    meddling = Meddling()
    meddling.instead["verify"] = [typed(SessionUncertain("a handler raised"))]
    async with gym.fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        runs = Runs(Fleet(servers.client, _joined(servers), 1))
        request = RunRequest(rollout_id="p0_g0", attempt_index=1, agent=AGENT, row=ROW)
        with pytest.raises(SessionUncertain):
            await runs.run(request)
        await servers.prepare_all("c1")
        counted = await _counts(servers)
        assert (counted[COUNTER].sessions, counted[MODEL].ledger_rows) == (1, 6)
        with pytest.raises(CheckpointParked):
            await runs.forget("p0_g0", AGENT)
        assert await _counts(servers) == counted
        records = _records(await servers.commit_all("c1"))
        assert (records["continuations.jsonl"], records["sessions.jsonl"]) == (1, 1)
        forgetting = asyncio.create_task(runs.forget("p0_g0", AGENT))
        await servers.resume_all("c1")
        await forgetting
        assert set((await _counts(servers)).values()) == {Counts()}
        await servers.prepare_all("c2")
        assert set(_records(await servers.commit_all("c2")).values()) == {0}
        await servers.resume_all("c2")
        # Nothing refuses an older run any more: the fences are gone with the rest.
        assert (await servers.run("p0_g0"))[0]["final_count"] == 18
        await runs.aclose()
