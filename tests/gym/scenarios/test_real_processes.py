"""The same with real processes: SIGKILL of all servers, a restore, and the next run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import ServerUnreachable
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, ROW, TOKEN, Fleet
from tests.gym.processes import processes
from tests.gym.rollouts import files_of, parked_at

pytestmark = pytest.mark.real


@pytest.mark.timeout(180)
async def test_killed_servers_go_on_from_the_snapshot(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with (
        processes(tmp_path, generation) as running,
        GymClient(SecretStr(TOKEN), connect_s=2) as client,
    ):
        await running.start(expect_restore=False)
        await running.answering(client)
        servers = Fleet(tmp_path, client, generation, running.urls)
        await servers.join()
        rollouts = [f"p{prompt}_g{generation_}" for prompt in range(2) for generation_ in range(2)]
        runs = await parked_at(servers, 2, *rollouts)
        answers = await servers.commit_all()
        await servers.resume_all()
        await generation.hold_from(4)  # some turns more, which the crash costs
        await generation.until_waiting("call-4", len(rollouts))
        await running.kill()
        lost = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(error, ServerUnreachable) for error in lost)
        await generation.hold_from(None)

        await running.start(expect_restore=True)
        await running.answering(client)
        await servers.join(2)
        await servers.restore_all(files_of(answers))
        await servers.resume_all("r1")
        results = await asyncio.gather(*(servers.run(rollout, 1) for rollout in rollouts))
        for rollout, (result, headers) in zip(rollouts, results, strict=True):
            assert (result["reward"], result["final_count"]) == (1.0, ROW["expected_count"])
            assert json.loads(headers["x-turnpoint-resource-revisions"]) == {COUNTER: 7}
            again = [call for call in generation.calls_of(rollout) if "-a1/" in call]
            assert again == [f"{rollout}-a1/call-{k}" for k in (3, 4, 5)]
            manifest = await client.manifest(running.urls[MODEL], MODEL, f"{rollout}-a1")
            assert len(manifest.records) == 6
    agent_log = (tmp_path / f"{AGENT}.log").read_text().splitlines()
    events = [json.loads(line) for line in agent_log]
    continued = [event for event in events if event.get("event") == "run_continued"]
    assert sorted(event["after"] for event in continued) == ["call-2"] * 4
    assert "z\\u00e4hle" not in "".join(agent_log)
