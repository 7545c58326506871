"""Runs of an agent server: joined, kept until they are acknowledged, ended by the next run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gym.protocol import (
    AcknowledgeRequest,
    CheckpointParked,
    ForgetRequest,
    RequestConflict,
    ResultConflict,
    StaleAttempt,
)
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, ROW, fleet
from tests.gym.meddling import resume_one
from tests.gym.rollouts import parked_at


async def test_a_run_that_a_save_has_counted_is_forgotten_after_it_alone(tmp_path: Path) -> None:
    """Break: gym/agent/part.py: forget it in every phase; seen red."""
    async with fleet(tmp_path, FakeGeneration()) as servers:
        await servers.join()
        (run,) = await parked_at(servers, 1, "p0_g0")
        answers = await servers.commit_all()
        forget = ForgetRequest(**servers.who(AGENT), rollout_ids=["p0_g0"])
        with pytest.raises(CheckpointParked):
            await servers.client.forget(servers.urls[AGENT], AGENT, forget)
        assert len(answers[AGENT].continuations) == 1
        assert (await servers.status(AGENT)).counts.parked == 1
        await servers.resume_all()
        await servers.client.forget(servers.urls[AGENT], AGENT, forget)
        with pytest.raises(StaleAttempt):
            await run
        assert (await servers.status(AGENT)).counts.parked == 0


async def test_results_are_kept_until_they_are_acknowledged(tmp_path: Path) -> None:
    async with fleet(tmp_path, FakeGeneration(turns=2)) as servers:
        await servers.join()
        first, headers = await servers.run("p0_g0")
        assert await servers.prepare(MODEL)
        closed = await servers.prepare(AGENT, budget_s=0.1)
        assert not closed.ready
        assert [b.where for b in closed.blockers] == ["result"]
        assert closed.counts.unacknowledged == 1
        # In every phase, and the same again.
        again, _ = await servers.run("p0_g0")
        assert again == first
        ack = AcknowledgeRequest(
            **servers.who(AGENT),
            rollout_id="p0_g0",
            attempt_index=0,
            result_digest=headers["x-turnpoint-result-digest"],
        )
        other = ack.model_copy(update={"result_digest": "0" * 64})
        client, url = servers.client, servers.urls[AGENT]
        with pytest.raises(ResultConflict):
            await client.acknowledge(url, AGENT, other)
        await client.acknowledge(url, AGENT, ack)
        await client.acknowledge(url, AGENT, ack)
        with pytest.raises(ResultConflict):
            await client.acknowledge(url, AGENT, other)
        assert (await servers.prepare(AGENT)).ready
        with pytest.raises(StaleAttempt):
            await servers.run("p0_g0")
        assert (await servers.prepare(COUNTER)).ready
        answers = await servers.commit_all()
        assert answers[AGENT].continuations == []
        forget = ForgetRequest(**servers.who(AGENT), rollout_ids=["p0_g0"])
        await client.forget(url, AGENT, forget)
        await client.acknowledge(url, AGENT, other)


async def test_an_unknown_run_is_refused_while_closed_and_a_known_one_joins(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        (run,) = await parked_at(servers, 1, "p0_g0")
        with pytest.raises(CheckpointParked):
            await servers.run("p0_g1")
        with pytest.raises(RequestConflict):
            await servers.run("p0_g0", row=ROW | {"expected_count": 1})
        joined = asyncio.create_task(servers.run("p0_g0"))
        await asyncio.sleep(0.05)
        await servers.resume_all()
        assert (await joined)[0] == (await run)[0]
        assert len(generation.calls_of("p0_g0")) == 6


async def test_a_caller_that_hangs_up_ends_nothing(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        await generation.hold_from(3)
        call = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-3")
        call.cancel()
        await asyncio.sleep(0.05)
        await generation.hold_from(None)
        await generation.until_waiting("call-5")  # no caller waits for it
        result, _ = await servers.run("p0_g0")
        assert result["final_count"] == 18
        assert len(generation.asked) == 6


async def test_the_next_run_ends_the_one_before(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        await generation.hold_from(2)
        old = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-2")
        new = asyncio.create_task(servers.run("p0_g0", 1))
        with pytest.raises(StaleAttempt):
            await old
        await generation.hold_from(None)
        result, _ = await new
        assert result["final_count"] == 18
        manifest = await servers.client.manifest(servers.urls[MODEL], MODEL, "p0_g0-a1")
        assert [row.capture_key for row in manifest.records] == ["p0_g0-a1"] * 6
        with pytest.raises(StaleAttempt):
            await servers.run("p0_g0", 0)


async def test_the_next_run_ends_the_one_before_whatever_it_waits_for(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        await generation.hold_from(0)
        old = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-0")
        await servers.prepare(COUNTER)  # so that run 1 gets no further than its seed
        new = asyncio.create_task(servers.run("p0_g0", 1))
        with pytest.raises(StaleAttempt):
            await asyncio.wait_for(old, 5)
        await generation.hold_from(None)
        await resume_one(servers, COUNTER)
        assert (await new)[0]["final_count"] == 18
