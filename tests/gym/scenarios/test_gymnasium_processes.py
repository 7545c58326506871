"""Gymnasium servers as real processes: SIGKILL of all, a restore, and the same episodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import Kind
from tests.gym.fleet import MODEL, TOKEN, Fleet
from tests.gym.gymnasium_fleet import (
    AGENT,
    ENVIRONMENT,
    MIXED,
    parked,
    turns,
    undisturbed,
)
from tests.gym.processes import processes
from tests.gym.scripted_generation import ScriptedGeneration

pytestmark = pytest.mark.real
MODULES = {
    MODEL: "gym.model.server",
    AGENT: "gym.agent.gymnasium_server",
    ENVIRONMENT: "gym.environments.gymnasium_server",
}
KINDS = dict(zip(MODULES, (Kind.MODEL, Kind.AGENT, Kind.RESOURCE), strict=True))


@pytest.mark.timeout(180)
async def test_episodes_of_killed_servers_go_on_in_new_processes(tmp_path: Path) -> None:
    """Break: leave `reward` or the generator out of what is saved."""
    # Most hands of cards are over after a turn or two: some of these are not.
    mixed = MIXED | {f"p0_g{k}": MIXED["p0_g0"] for k in range(24)}
    everything = await undisturbed(tmp_path / "undisturbed", mixed, max_steps=10)
    k = 1
    rows = {name: row for name, row in mixed.items() if len(turns(everything[name])) > k + 1}
    assert {name.partition("_")[0] for name in rows} == {"p0", "p1", "p2", "p3"}
    generation = ScriptedGeneration()
    async with (
        processes(tmp_path, generation, MODULES) as running,
        GymClient(SecretStr(TOKEN), connect_s=2) as client,
    ):
        await running.start(expect_restore=False)
        await running.answering(client)
        servers = Fleet(tmp_path, client, generation, running.urls, kinds=dict(KINDS))
        await servers.join()
        runs = await parked(servers, k, rows)
        assert all(answer.ready for answer in await servers.prepare_all())
        answers = await servers.commit_all()
        await servers.resume_all()
        await running.kill()
        await asyncio.gather(*runs, return_exceptions=True)

        await running.start(expect_restore=True)
        await running.answering(client)
        await servers.join(2)
        await servers.restore_all({name: answer.files for name, answer in answers.items()})
        await servers.resume_all("r1")
        for name, row in rows.items():
            result, headers = await servers.run(name, 1, row)
            assert result == everything[name]
            revisions = json.loads(headers["x-turnpoint-resource-revisions"])
            assert revisions == {ENVIRONMENT: 1 + len(turns(result))}
            again = [call for call in generation.calls_of(name) if "-a1/" in call]
            assert again[0] == f"{name}-a1/call-{k + 1}"
