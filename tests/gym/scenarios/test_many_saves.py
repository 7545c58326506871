"""Saves in a row leave nothing in the servers: what is kept of them does not add up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gym.protocol import AcknowledgeRequest, ForgetRequest, digest_of
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, Fleet, fleet
from tests.object_counts import grown, object_counts

FEW, MANY = 5, 15


async def test_what_servers_hold_does_not_grow_with_saves_and_finished_rollouts(
    tmp_path: Path,
) -> None:
    """Each save meets a rollout that was not there before, and ends while it goes on.

    Break: keep every `Operation` that has ended in `Phases`, or leave `Fences.forget` or
    `Ledger.drop` empty.
    """
    async with fleet(tmp_path, FakeGeneration()) as servers:
        await servers.join()
        for number in range(FEW):
            await _one(servers, number)
        before = object_counts("gym")
        for number in range(FEW, FEW + MANY):
            await _one(servers, number)
        more = grown(before, object_counts("gym"), MANY, "gym.ended_ids.EndedIds._ids")
        held = [await servers.status(name) for name in (AGENT, MODEL, COUNTER)]
    assert more == {}
    assert [status.counts.model_dump(exclude_defaults=True) for status in held] == [{}, {}, {}]


async def _one(servers: Fleet, number: int) -> None:
    """A rollout that is saved in its middle, finishes and is acknowledged everywhere."""
    rollout, checkpoint = f"p{number}_g0", f"c{number}"
    generation = servers.generation
    generation.asked.clear()
    generation.rows.clear()
    await generation.hold_from(2)
    running = asyncio.create_task(servers.run(rollout))
    await generation.until_waiting("call-2")
    closing = asyncio.create_task(servers.prepare(MODEL, checkpoint))
    await generation.hold_from(None)
    assert (await closing).ready
    for name in (AGENT, COUNTER):
        assert (await servers.prepare(name, checkpoint)).ready
    await servers.commit_all(checkpoint)
    await servers.resume_all(checkpoint)
    result, _ = await running
    acknowledge = AcknowledgeRequest(
        **servers.who(AGENT),
        rollout_id=rollout,
        attempt_index=0,
        result_digest=digest_of(result),
    )
    await _forget(servers, rollout, MODEL, COUNTER)
    await servers.client.acknowledge(servers.urls[AGENT], AGENT, acknowledge)
    await _forget(servers, rollout, AGENT)


async def _forget(servers: Fleet, rollout: str, *names: str) -> None:
    for name in names:
        request = ForgetRequest(**servers.who(name), rollout_ids=[rollout])
        await servers.client.forget(servers.urls[name], name, request)
