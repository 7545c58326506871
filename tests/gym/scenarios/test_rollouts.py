"""Agent and model server together: undisturbed, saved and restored rollouts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gym.protocol import (
    AcknowledgeRequest,
    DiscardRequest,
    ForgetRequest,
    Phase,
    StaleAttempt,
    canonical_json,
    digest_of,
)
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, ROW, fleet
from tests.gym.rollouts import files_of, items_of, parked_at


async def test_an_undisturbed_rollout_ends_with_its_result_and_its_chain(tmp_path: Path) -> None:
    async with fleet(tmp_path, FakeGeneration()) as servers:
        await servers.join()
        result, headers = await servers.run("p0_g0")
        assert (result["reward"], result["final_count"]) == (1.0, 18)
        assert headers["x-turnpoint-result-digest"] == digest_of(result)
        assert headers["x-turnpoint-last-model-call-id"] == "call-5"
        assert json.loads(headers["x-turnpoint-resource-revisions"]) == {COUNTER: 7}
        output = result["response"]["output"]
        kinds = [item["type"] for item in output]
        assert kinds == ["function_call", "function_call_output"] * 5 + ["message"]
        assert output[1]["output"] == '{"success": true}'
        assert result["response"]["usage"]["total_tokens"] == 6 * 8
        manifest = await servers.client.manifest(servers.urls[MODEL], MODEL, "p0_g0")
        assert [row.model_call_id for row in manifest.records] == [f"call-{k}" for k in range(6)]
        keys = [row.coordinates.key for row in manifest.records]
        assert [row.coordinates.parent_key for row in manifest.records] == [None, *keys[:-1]]


async def test_a_save_in_the_middle_parks_and_resume_goes_on(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        runs = await parked_at(servers, 2, "p0_g0", "p0_g1")
        status = await servers.status(AGENT)
        assert (status.phase, status.counts.parked, status.counts.running) == (
            Phase.PREPARED,
            2,
            0,
        )
        answers = await servers.commit_all()
        line = answers[AGENT].continuations[0].model_dump()
        assert line == {
            "schema_version": 1,
            "rollout_id": "p0_g0",
            "attempt_index": 0,
            "capture_key": "p0_g0",
            "last_committed_model_call_id": "call-2",
            "resource_state_revisions": {COUNTER: 4},
        }
        written = (servers.folder("c1") / "gym" / AGENT / "continuations.jsonl").read_text()
        assert json.loads(written.splitlines()[0]) == line
        assert answers[MODEL].counts.ledger_rows == 6
        assert [ref.model_call_id for ref in answers[MODEL].storage[:3]] == [
            "call-0",
            "call-1",
            "call-2",
        ]
        sessions = {one.rollout_id: one.revision for one in answers[COUNTER].sessions}
        assert sessions == {"p0_g0": 4, "p0_g1": 4}
        await asyncio.sleep(0.1)
        assert not any(run.done() for run in runs)
        await servers.resume_all()
        for result, _ in await asyncio.gather(*runs):
            assert result["final_count"] == 18
        assert len(generation.generated) == len(set(generation.generated)) == 12


async def test_a_restored_rollout_goes_on_as_the_next_run(tmp_path: Path) -> None:
    """Invariant 4. Break: gym/agent/state.py: begin run n+1 one turn earlier; seen red."""
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        undisturbed, _ = await servers.run("p9_g9")
        # RL took it over; it is no part of the snapshot.
        await servers.client.acknowledge(
            servers.urls[AGENT],
            AGENT,
            AcknowledgeRequest(
                **servers.who(AGENT),
                rollout_id="p9_g9",
                attempt_index=0,
                result_digest=digest_of(undisturbed),
            ),
        )
        for name in (MODEL, COUNTER):
            forget = ForgetRequest(**servers.who(name), rollout_ids=["p9_g9"])
            await servers.client.forget(servers.urls[name], name, forget)
        runs = await parked_at(servers, 2, "p0_g0", "p0_g1")
        answers = await servers.commit_all()
        for run in runs:
            run.cancel()  # the job dies
    saved = items_of(servers.folder("c1"))
    before = list(generation.generated)

    async with fleet(tmp_path, generation, expect_restore=True) as restored:
        await restored.join(2)
        inventories = await restored.restore_all(files_of(answers))
        assert [c.attempt_index for c in inventories[AGENT].continuations] == [1, 1]
        assert {c.capture_key for c in inventories[AGENT].continuations} == {"p0_g0", "p0_g1"}
        assert inventories[MODEL].storage == answers[MODEL].storage
        assert (await restored.status(AGENT)).counts.parked == 2
        with pytest.raises(StaleAttempt):
            await restored.run("p0_g0", 0)
        sent = asyncio.create_task(restored.run("p0_g0", 1))  # held in every phase
        await asyncio.sleep(0.05)
        assert not sent.done()
        await restored.resume_all("r1")
        results = [await sent, await restored.run("p0_g1", 1)]
        for result, headers in results:
            assert result["final_count"] == 18
            assert headers["x-turnpoint-last-model-call-id"] == "call-5"
            assert json.loads(headers["x-turnpoint-resource-revisions"]) == {COUNTER: 7}
        new = generation.generated[len(before) :]
        assert sorted(key for key in new if "p0_g0" in key) == [
            f"2/p0_g0-a1/call-{k}" for k in (3, 4, 5)
        ]
        manifest = await restored.client.manifest(restored.urls[MODEL], MODEL, "p0_g0-a1")
        keys = [row.coordinates.key for row in manifest.records]
        assert keys[2:4] == ["1/p0_g0/call-2", "2/p0_g0-a1/call-3"]
        assert manifest.records[3].coordinates.parent_key == "1/p0_g0/call-2"
        # The turns before the crash are there as they were; a result's keys are sorted.
        kept = next(item for item in saved if item["rollout_id"] == "p0_g0")["conversation"]
        whole = ROW["responses_create_params"]["input"] + results[0][0]["response"]["output"]
        assert canonical_json(whole[: len(kept)]) == canonical_json(kept)
        assert strip(results[0][0]["response"], "p0_g0") == strip(undisturbed["response"], "p9_g9")
        with pytest.raises(StaleAttempt):
            await restored.run("p0_g0", 0)


def strip(value: Any, rollout_id: str) -> str:
    return json.dumps(value).replace(rollout_id, "ROLLOUT")


async def test_a_restored_record_not_sent_again_is_saved_again(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        runs = await parked_at(servers, 2, "p0_g0", "p0_g1")
        first = await servers.commit_all()
        for run in runs:
            run.cancel()
    async with fleet(tmp_path, generation, expect_restore=True) as second:
        await second.join(2)
        await second.restore_all(files_of(first))
        await second.resume_all("r1")
        await generation.hold_from(4)
        sent = asyncio.create_task(second.run("p0_g0", 1))
        await generation.until_waiting("call-4")
        closing = asyncio.create_task(second.prepare(MODEL, "c2"))
        await asyncio.sleep(0.05)
        await generation.hold_from(None)
        assert (await closing).ready
        assert (await second.prepare(AGENT, "c2")).ready
        assert (await second.prepare(COUNTER, "c2")).ready
        again = await second.commit_all("c2")
        sent.cancel()
        lines = {c.rollout_id: c for c in again[AGENT].continuations}
        assert lines["p0_g0"].capture_key == "p0_g0-a1"
        assert lines["p0_g0"].last_committed_model_call_id == "call-4"
        assert lines["p0_g1"].capture_key == "p0_g1"
        assert lines["p0_g1"].last_committed_model_call_id == "call-2"
        assert lines["p0_g1"].attempt_index == 1
        owned = {ref.key for ref in again[MODEL].storage if ref.rollout_id == "p0_g0"}
        assert owned == {
            *(f"1/p0_g0/call-{k}" for k in range(3)),
            *(f"2/p0_g0-a1/call-{k}" for k in (3, 4)),
        }
    async with fleet(tmp_path, generation, expect_restore=True) as third:
        await third.join(3)
        await third.restore_all(files_of(again), "r2", "c2")
        await third.resume_all("r2")
        for rollout in ("p0_g0", "p0_g1"):
            result, _ = await third.run(rollout, 2)
            assert result["final_count"] == 18


async def test_discarded_records_start_over_as_the_same_next_run(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        runs = await parked_at(servers, 2, "p0_g0")
        answers = await servers.commit_all()
        runs[0].cancel()
    async with fleet(tmp_path, generation, expect_restore=True) as restored:
        await restored.join(2)
        await restored.restore_all(files_of(answers))
        for name in (AGENT, MODEL, COUNTER):
            request = DiscardRequest(**restored.who(name), restore_id="r1", rollout_ids=["p0_g0"])
            await restored.client.discard(restored.urls[name], name, request)
        assert (await restored.status(AGENT)).counts.parked == 0
        assert (await restored.status(MODEL)).counts.ledger_rows == 0
        await restored.resume_all("r1")
        with pytest.raises(StaleAttempt):
            await restored.run("p0_g0", 0)
        result, _ = await restored.run("p0_g0", 1)
        assert result["final_count"] == 18
        assert generation.generated[-6:] == [f"2/p0_g0-a1/call-{k}" for k in range(6)]
