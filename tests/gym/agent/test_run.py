"""Calls of a run: lost answers, refusals and gateways."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from gym.protocol import (
    ResumeRequest,
)
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, fleet, until
from tests.gym.meddling import Meddling, outputs, resume_one


@pytest.mark.parametrize("fault", ["lost", "refused"])
async def test_a_call_whose_answer_was_lost_is_issued_again_and_has_one_effect(
    tmp_path: Path, fault: str
) -> None:
    meddling = Meddling()
    getattr(meddling, fault).extend(
        ["seed_session", "responses", "increment_counter", "responses", "verify"]
    )
    generation = FakeGeneration()
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        result, headers = await servers.run("p0_g0")
        assert (result["reward"], result["final_count"]) == (1.0, 18)
        assert json.loads(headers["x-turnpoint-resource-revisions"]) == {COUNTER: 7}
        for name in ("p0_g0/seed/0", "call-0", "p0_g0/call-0/0", "p0_g0/verify/0"):
            contents = meddling.with_id(name)
            assert len(contents) >= 2
            assert len(set(contents)) == 1
        assert len(generation.generated) == 6
        assert outputs(result) == ['{"success": true}'] * 5


@pytest.mark.parametrize("closed", [MODEL, COUNTER])
async def test_a_refusal_by_a_checkpoint_is_waited_out_and_never_shown(
    tmp_path: Path, closed: str
) -> None:
    generation, meddling = FakeGeneration(), Meddling()
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        await generation.hold_from(2)
        run = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-2")
        closing = asyncio.create_task(servers.prepare(closed))
        await asyncio.sleep(0.05)
        await generation.hold_from(None)
        assert (await closing).ready
        refused = "call-3" if closed == MODEL else "p0_g0/call-2/0"
        await until(lambda: len(meddling.with_id(refused)) >= 2)  # refused, and issued again
        status = await servers.status(AGENT)
        # A refused model call stands at its boundary; a step is part of a turn.
        assert status.counts.parked == (1 if closed == MODEL else 0)
        await resume_one(servers, closed)
        result, _ = await run
        assert result["final_count"] == 18
        assert outputs(result) == ['{"success": true}'] * 5
        assert len(set(meddling.with_id(refused))) == 1


async def test_an_agent_that_opens_issues_a_refused_call_at_once(tmp_path: Path) -> None:
    meddling = Meddling()
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        await servers.prepare(MODEL)
        run = asyncio.create_task(servers.run("p0_g0"))
        await until(lambda: bool(meddling.with_id("call-0")))
        refused_at = asyncio.get_running_loop().time()
        assert (await servers.prepare(AGENT)).ready
        await resume_one(servers, MODEL)
        await resume_one(servers, AGENT)
        await run
        assert asyncio.get_running_loop().time() - refused_at < 0.9  # retry-after is 1 s


async def test_a_closed_agent_makes_no_call(tmp_path: Path) -> None:
    generation, meddling = FakeGeneration(turns=2), Meddling()
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        await generation.hold_from(0)
        run = asyncio.create_task(servers.run("p0_g0"))
        for call, done in (("call-0", 3), ("call-1", 4)):  # before a model call, before verify
            await generation.until_waiting(call)
            closing = asyncio.create_task(servers.prepare(AGENT, call))
            await asyncio.sleep(0.05)
            assert not closing.done()
            await generation.hold_from(1 if call == "call-0" else None)
            assert (await closing).ready
            assert (await servers.status(AGENT)).counts.parked == 1
            await asyncio.sleep(0.1)
            assert len(meddling.sent) == done
            request = ResumeRequest(**servers.who(AGENT), checkpoint_id=call)
            await servers.client.resume(servers.urls[AGENT], AGENT, request)
        await run


async def test_a_gateway_error_is_no_answer(tmp_path: Path) -> None:
    meddling = Meddling()
    meddling.instead["increment_counter"] = [httpx.Response(503, text="draining")]
    meddling.instead["responses"] = [httpx.Response(502, text="bad gateway")]
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        result, _ = await servers.run("p0_g0")
        assert outputs(result) == ['{"success": true}'] * 5
