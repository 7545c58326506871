"""The phases of a save: their order, and what a slow, dead or another server ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gym.protocol import (
    CheckpointConflict,
    DeadlineExceeded,
    Kind,
    NotReady,
    Phase,
    ServerFault,
    StaleInstance,
)
from rl.errors import NotHeld
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet, lease_left

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


def _file(path: str) -> dict[str, object]:
    return {"path": path, "bytes": 10, "records": 1, "sha256": SHA}


async def test_each_phase_asks_the_kinds_in_the_designs_order(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    for name, parked in (("agent_a", 3), ("agent_b", 4), ("counter", 9)):
        fakes[name].parked = parked
    prepared = await save_phases.prepare(fleet, CHECKPOINT, 5, lease_left)
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/snapshots/job/tmp"), lease_left)
    await save_phases.confirm_held(fleet, CHECKPOINT)
    await save_phases.resume_servers(fleet.client, fleet.servers, 1, CHECKPOINT)
    assert prepared.parked == 7
    assert fakes.kinds("prepare") == [Kind.MODEL, Kind.AGENT, Kind.RESOURCE]
    assert fakes.kinds("commit") == [Kind.AGENT, Kind.MODEL, Kind.RESOURCE]
    assert fakes.kinds("resume") == [Kind.RESOURCE, Kind.MODEL, Kind.AGENT]
    assert [report.server for report in prepared.servers] == list(fakes.servers)
    first_status = next(i for i, a in enumerate(fakes.journal) if a.operation == "status")
    assert {a.operation for a in fakes.journal[:first_status]} == {"prepare"}
    for asked in fakes.journal:
        assert asked.headers["authorization"] == "Bearer token"
        sent = asked.body
        assert (int(sent["incarnation"]), sent["instance_id"]) == (1, f"{asked.server}-life-1")


async def test_servers_of_a_kind_are_asked_at_once_and_the_next_kind_waits_for_all(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    gate, arrived = asyncio.Event(), []

    for name in ("agent_a", "agent_b"):

        async def script(body: dict, name: str = name) -> dict:
            arrived.append(name)
            if len(arrived) == 2:
                gate.set()
            await asyncio.wait_for(gate.wait(), 5)
            if name == "agent_a":
                await asyncio.sleep(0.2)
            assert not fakes.asked("prepare")[4:], "no resource was asked yet"
            return fakes[name].default("prepare", body)

        fakes[name].scripts["prepare"] = script
    await save_phases.prepare(fleet, CHECKPOINT, 5, lease_left)
    assert sorted(arrived) == ["agent_a", "agent_b"]
    assert fakes.kinds("prepare")[-1] is Kind.RESOURCE


async def test_prepare_waits_until_no_call_is_in_flight(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["counter"].in_flight = 1
    fakes["judge"].in_flight = 5
    task = asyncio.create_task(save_phases.prepare(fleet, CHECKPOINT, 5, lease_left))
    await asyncio.sleep(0.3)
    assert not task.done()
    fakes["counter"].in_flight = 0
    await asyncio.wait_for(task, 1)
    assert len(fakes.bodies("status", "counter")) > 1


async def test_a_server_that_opened_by_itself_during_prepare_is_found(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    async def script(body: dict) -> dict:
        fakes["agent_a"].holder, fakes["agent_a"].phase = None, Phase.OPEN
        return fakes["tools"].default("prepare", body)

    fakes["tools"].scripts["prepare"] = script
    with pytest.raises(NotHeld, match="agent_a"):
        await save_phases.prepare(fleet, CHECKPOINT, 5, lease_left)


async def test_a_refusal_ends_the_phase_at_once(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["agent_a"].fail("prepare", CheckpointConflict("another"))
    fakes["agent_b"].hang("prepare")
    started = time.monotonic()
    with pytest.raises(CheckpointConflict):
        await save_phases.prepare(fleet, CHECKPOINT, 20, lease_left)
    assert time.monotonic() - started < 2
    assert "counter" not in fakes.asked("prepare")


async def test_models_alone_get_the_indexes_of_all_agents(fakes: FakeFleet, fleet: Fleet) -> None:
    for name in ("agent_a", "agent_b"):

        async def script(body: dict, name: str = name) -> dict:
            files = [
                _file(f"gym/{name}/continuations.jsonl"),
                _file(f"gym/{name}/records.jsonl"),
            ]
            return {**fakes[name].default("commit", body), "files": files}

        fakes[name].scripts["commit"] = script
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/snapshots/job/tmp"), lease_left)
    for name in fakes.servers:
        (body,) = fakes.bodies("commit", name)
        indexes = [file["path"] for file in body["continuation_indexes"]]
        expected = [f"gym/{agent}/continuations.jsonl" for agent in ("agent_a", "agent_b")]
        assert indexes == (expected if fakes[name].kind is Kind.MODEL else [])
        assert body["folder"] == "/snapshots/job/tmp"


async def test_a_server_that_names_files_of_another_is_refused(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    async def script(body: dict) -> dict:
        return {
            **fakes["counter"].default("commit", body),
            "files": [_file("gym/tools/sessions.jsonl")],
        }

    fakes["counter"].scripts["commit"] = script
    with pytest.raises(ServerFault, match="own folder"):
        await save_phases.commit(fleet, CHECKPOINT, 5, Path("/s"), lease_left)


async def test_commit_ends_at_its_deadline(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["policy_model"].hang("commit")
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="policy_model"):
        await save_phases.commit(fleet, CHECKPOINT, 0.5, Path("/s"), lease_left)
    assert time.monotonic() - started < 1.5
    assert "counter" not in fakes.asked("commit")


async def test_confirm_held_refuses_what_is_not_held_any_more(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes.hold(CHECKPOINT)
    reports = await save_phases.confirm_held(fleet, CHECKPOINT)
    assert [report.server for report in reports] == list(fakes.servers)

    fakes["agent_a"].holder = "another"
    fakes["counter"].phase = Phase.PREPARED
    fakes["judge"].fail("status", StaleInstance("another life"))

    async def ended(body: dict) -> dict:
        return {**fakes["tools"].default("status", body), "lease_left_s": None}

    fakes["tools"].scripts["status"] = ended
    await fakes["agent_b"].stop()
    with pytest.raises(NotHeld) as refused:
        await save_phases.confirm_held(fleet, CHECKPOINT, 0.5)
    assert refused.value.details["servers"] == {
        "judge": "stale_instance",
        "agent_a": "committed, held by another",
        "agent_b": "server_unreachable",
        "counter": "prepared",
        "tools": "its lease has ended",
    }


async def test_dead_and_other_servers_count_as_resumed_and_are_named(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes.hold(CHECKPOINT)
    await fakes["counter"].stop()
    fakes["policy_model"].hang("resume")
    fakes["tools"].fail("resume", StaleInstance("another life"))
    fakes["judge"].fail("resume", *[ServerFault("broken")] * 9)
    started = time.monotonic()
    reports = await save_phases.resume_servers(fleet.client, fleet.servers, 1, CHECKPOINT, 0.6)
    assert 1.0 < time.monotonic() - started < 2.5, "one wait for each kind with a dead server"
    assert {report.server: report.note for report in reports} == {
        "counter": "unreachable",
        "tools": "another instance",
        "policy_model": "unreachable",
        "judge": "server_fault",
        "agent_a": None,
        "agent_b": None,
    }
    assert fakes["agent_a"].phase is fakes["agent_b"].phase is Phase.OPEN


async def test_a_server_that_comes_back_within_the_wait_is_resumed(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes.hold(CHECKPOINT)
    fakes["counter"].fail("resume", *[NotReady("a moment")] * 3)
    reports = await save_phases.resume_servers(fleet.client, fleet.servers, 1, CHECKPOINT)
    assert all(report.note is None for report in reports)


async def test_renew_names_the_servers_of_the_checkpoint_and_waits_for_none(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes.hold(CHECKPOINT)
    fakes["agent_a"].holder = None
    fakes["agent_b"].hang("renew")
    started = time.monotonic()
    held = await save_phases.renew(fleet, CHECKPOINT, 1.5)
    assert held == {"policy_model", "judge", "counter", "tools"}
    assert time.monotonic() - started < 1
