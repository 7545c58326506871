"""The order of the phases, and what happens when a server is slow, dead or another one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import (
    CheckpointConflict,
    DeadlineExceeded,
    DigestMismatch,
    InvalidPhase,
    Kind,
    NotReady,
    Phase,
    ServerFault,
    ServerUnreachable,
    StaleCheckpoint,
    StaleInstance,
    TurnpointError,
    WrittenFile,
)
from rl.errors import NotHeld
from rl.nemo_gym import restore as restore_phases
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Fleet
from rl.nemo_gym.service import GymDesk
from tests.rl.gym_fakes import FakeFleet, fake_fleet
from workflows.restore_snapshot import ABOUT_THE_SNAPSHOT

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


@pytest_asyncio.fixture
async def fakes() -> AsyncIterator[FakeFleet]:
    async with fake_fleet() as fleet:
        yield fleet


@pytest_asyncio.fixture
async def client() -> AsyncIterator[GymClient]:
    async with GymClient(SecretStr("token")) as client:
        yield client


def driven() -> float:
    """Somebody drives the save for five more seconds."""
    return 5.0


@pytest.fixture
def fleet(fakes: FakeFleet, client: GymClient) -> Fleet:
    return Fleet(client, fakes.joined(), 1)


def _file(path: str) -> dict[str, object]:
    return {"path": path, "bytes": 10, "records": 1, "sha256": SHA}


async def test_each_phase_asks_the_kinds_in_the_designs_order(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    for name, parked in (("agent_a", 3), ("agent_b", 4), ("counter", 9)):
        fakes[name].parked = parked
    prepared = await save_phases.prepare(fleet, CHECKPOINT, 5, driven)
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/snapshots/job/tmp"), driven)
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


async def test_a_restore_asks_the_kinds_in_the_designs_order(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    """Invariant 10. Break: rl/nemo_gym/save.py: resume agents first; seen red."""
    files = [WrittenFile(path=f"gym/{name}/part", bytes=1, sha256=SHA) for name in fakes.servers]
    await restore_phases.restore(fleet, "restore-1", CHECKPOINT, Path("/snapshots/job/s"), files)
    await restore_phases.discard(fleet, "restore-1", ["p1_g0"])
    await restore_phases.resume_restored(fleet, "restore-1")
    await restore_phases.reset_servers(fleet.client, fleet.servers, 1, "restore-1")
    assert fakes.kinds("restore") == [Kind.MODEL, Kind.AGENT, Kind.RESOURCE]
    assert fakes.kinds("discard") == [Kind.AGENT, Kind.MODEL, Kind.RESOURCE]
    assert fakes.kinds("resume") == [Kind.RESOURCE, Kind.MODEL, Kind.AGENT]
    assert fakes.kinds("reset") == [Kind.AGENT, Kind.MODEL, Kind.RESOURCE]
    for name in fakes.servers:
        (body,) = fakes.bodies("restore", name)
        assert [file["path"] for file in body["files"]] == [f"gym/{name}/part"]


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
    await save_phases.prepare(fleet, CHECKPOINT, 5, driven)
    assert sorted(arrived) == ["agent_a", "agent_b"]
    assert fakes.kinds("prepare")[-1] is Kind.RESOURCE


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
        await save_phases.prepare(fleet, CHECKPOINT, 5, driven)
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
        await save_phases.prepare(fleet, CHECKPOINT, 0.8, driven)
    assert 0.4 < time.monotonic() - started < 1.5
    blockers = refused.value.details["blockers"]
    assert [(b["server"], b["where"]) for b in blockers] == [
        ("agent_a", "no_answer"),
        ("agent_b", "no_answer"),
    ]


async def test_a_server_that_dies_while_agents_are_waited_for_is_named_within_a_lease(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    """Break: wait for the kinds one after the other alone: the agents repeat its steps for ever."""
    fakes["agent_a"].hang("prepare")
    await fakes["counter"].stop()
    began = time.monotonic()
    with pytest.raises(NotReady, match="first on counter: no_answer") as refused:
        await save_phases.prepare(fleet, CHECKPOINT, 60, lambda: 1.0)
    assert time.monotonic() - began < 10
    assert [blocker["server"] for blocker in refused.value.details["blockers"]] == ["counter"]
    assert fakes.asked("prepare").count("agent_a") == 1
    assert "tools" not in fakes.asked("prepare")


@pytest.mark.parametrize("silent", ["policy_model", "agent_b"])
async def test_any_server_that_stands_still_is_named_within_a_lease(
    fakes: FakeFleet, fleet: Fleet, silent: str
) -> None:
    """It has lost its lease: the others would stand still for a save that cannot be published.

    Break: rl/nemo_gym/save.py: look at servers of later kinds alone, or not while all commit.
    """
    for operation in ("prepare", "commit"):
        fakes["agent_a"].hang(operation)
    fakes["agent_b"].hang("prepare")
    fakes["agent_b"].hang("commit")
    fakes[silent].hang("status")
    began = time.monotonic()
    with pytest.raises(NotReady, match=f"first on {silent}: no_answer"):
        await save_phases.prepare(fleet, CHECKPOINT, 60, lambda: 1.0)
    with pytest.raises(NotHeld, match=f"first {silent}") as lost:
        await save_phases.commit(fleet, CHECKPOINT, 60, Path("/s"), lambda: 1.0)
    assert lost.value.details["servers"] == {silent: "server_unreachable"}
    assert time.monotonic() - began < 15


async def test_servers_get_what_is_left_of_the_budget(fakes: FakeFleet, fleet: Fleet) -> None:
    """Invariant 3. Break: rl/nemo_gym/save.py: ask with `lease_s=30.0` in `prepare`; seen red."""
    fakes["policy_model"].hang("prepare", 0.5)
    await save_phases.prepare(fleet, CHECKPOINT, 4, driven)
    (model,) = fakes.bodies("prepare", "policy_model")
    (resource,) = fakes.bodies("prepare", "counter")
    assert 3.0 < model["budget_s"] < 4
    assert resource["budget_s"] < 3.5
    assert resource["lease_s"] == 5


async def test_prepare_waits_until_no_call_is_in_flight(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["counter"].in_flight = 1
    fakes["judge"].in_flight = 5
    task = asyncio.create_task(save_phases.prepare(fleet, CHECKPOINT, 5, driven))
    await asyncio.sleep(0.3)
    assert not task.done()
    fakes["counter"].in_flight = 0
    await asyncio.wait_for(task, 1)
    assert len(fakes.bodies("status", "counter")) > 1


async def test_calls_still_in_flight_at_the_deadline_are_blockers(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes["counter"].in_flight = 1
    with pytest.raises(NotReady) as refused:
        await save_phases.prepare(fleet, CHECKPOINT, 2, driven)
    (blocker,) = refused.value.details["blockers"]
    assert (blocker["server"], blocker["where"]) == ("counter", "in_flight")


async def test_a_server_that_opened_by_itself_during_prepare_is_found(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    async def script(body: dict) -> dict:
        fakes["agent_a"].holder, fakes["agent_a"].phase = None, Phase.OPEN
        return fakes["tools"].default("prepare", body)

    fakes["tools"].scripts["prepare"] = script
    with pytest.raises(NotHeld, match="agent_a"):
        await save_phases.prepare(fleet, CHECKPOINT, 5, driven)


async def test_a_refusal_ends_the_phase_at_once(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["agent_a"].fail("prepare", CheckpointConflict("another"))
    fakes["agent_b"].hang("prepare")
    started = time.monotonic()
    with pytest.raises(CheckpointConflict):
        await save_phases.prepare(fleet, CHECKPOINT, 20, driven)
    assert time.monotonic() - started < 2
    assert "counter" not in fakes.asked("prepare")


async def test_a_failure_that_passes_is_met_by_the_same_call_again(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes["agent_a"].fail("commit", NotReady("writer"), NotReady("writer"))
    await save_phases.prepare(fleet, CHECKPOINT, 5, driven)
    started = time.monotonic()
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/s"), driven)
    assert len(fakes.bodies("commit", "agent_a")) == 3
    assert 0.1 < time.monotonic() - started < 1


async def test_models_get_the_indexes_of_all_agents_and_nobody_else_does(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    for name in ("agent_a", "agent_b"):

        async def script(body: dict, name: str = name) -> dict:
            files = [
                _file(f"gym/{name}/continuations.jsonl"),
                _file(f"gym/{name}/records.jsonl"),
            ]
            return {**fakes[name].default("commit", body), "files": files}

        fakes[name].scripts["commit"] = script
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/snapshots/job/tmp"), driven)
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
        await save_phases.commit(fleet, CHECKPOINT, 5, Path("/s"), driven)


async def test_commit_ends_at_its_deadline(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["policy_model"].hang("commit")
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="policy_model"):
        await save_phases.commit(fleet, CHECKPOINT, 0.5, Path("/s"), driven)
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


async def test_renew_tells_who_holds_the_checkpoint_and_waits_for_nobody(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes.hold(CHECKPOINT)
    fakes["agent_a"].holder = None
    fakes["agent_b"].hang("renew")
    started = time.monotonic()
    held = await save_phases.renew(fleet, CHECKPOINT, 1.5)
    assert held == {"policy_model", "judge", "counter", "tools"}
    assert time.monotonic() - started < 1


async def test_a_restore_that_is_refused_stops_and_names_the_file(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    damage = DigestMismatch("gym/agent_b/x: another one", details={"file": "gym/agent_b/x"})
    fakes["agent_b"].fail("restore", damage)
    with pytest.raises(DigestMismatch) as refused:
        await restore_phases.restore(fleet, "restore-1", CHECKPOINT, Path("/s"), [])
    assert refused.value.participant == "agent_b"
    assert refused.value.details["file"] == "gym/agent_b/x"
    assert "counter" not in fakes.asked("restore")


async def test_a_restored_server_that_is_not_open_after_its_resume_ends_the_restore(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    fakes["policy_model"].holder, fakes["policy_model"].phase = "another", Phase.AWAITING_RESTORE
    with pytest.raises(InvalidPhase, match="awaiting_restore"):
        await restore_phases.resume_restored(fleet, "restore-1")
    assert "agent_a" not in fakes.asked("resume")


async def test_reset_reaches_every_server_and_names_the_dead(
    fakes: FakeFleet, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.nemo_gym.restore.UNREACHABLE_S", 0.3)
    await fakes["agent_a"].stop()
    fakes["agent_b"].fail("reset", StaleInstance("another life"))
    reports = await restore_phases.reset_servers(fleet.client, fleet.servers, 1, "restore-1")
    notes = {report.server: report.note for report in reports}
    assert notes.pop("agent_a") == "unreachable"
    assert notes.pop("agent_b") == "another instance"
    assert set(notes.values()) == {None} and len(notes) == 4

    fakes["policy_model"].fail("reset", InvalidPhase("open"))
    with pytest.raises(InvalidPhase):
        await restore_phases.reset_servers(fleet.client, fleet.servers, 1, "restore-2")
    assert fakes.bodies("reset", "tools")[-1]["restore_id"] == "restore-2"


async def test_status_leaves_out_who_does_not_answer(fakes: FakeFleet, fleet: Fleet) -> None:
    await fakes["agent_a"].stop()
    found = await save_phases.statuses(fleet)
    assert {status.server for status in found} == set(fakes.servers) - {"agent_a"}


async def test_a_server_without_control_routes_is_never_asked(
    fakes: FakeFleet, client: GymClient
) -> None:
    servers = [
        server.model_copy(update={"instance_id": None}) if server.name == "tools" else server
        for server in fakes.joined()
    ]
    fleet = Fleet(client, servers, 1)
    await save_phases.prepare(fleet, CHECKPOINT, 5, driven)
    await save_phases.commit(fleet, CHECKPOINT, 5, Path("/s"), driven)
    await save_phases.confirm_held(fleet, CHECKPOINT)
    await save_phases.resume_servers(client, servers, 1, CHECKPOINT)
    assert "tools" not in {asked.server for asked in fakes.journal}


# --- the desk ---------------------------------------------------------------------------------


async def test_the_inventory_is_that_of_exactly_one_commit(fakes: FakeFleet, fleet: Fleet) -> None:
    desk = GymDesk(fleet)
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
        desk.inventory(CHECKPOINT)
    desk._driven = (CHECKPOINT, math.inf)
    answers = await desk.commit(CHECKPOINT, 5, Path("/s"))
    assert answers.continuations == 1
    assert [file.path for file in answers.files] == ["gym/agent_a/continuations.jsonl"]
    assert {report.server: report.bytes for report in answers.servers}["agent_a"] == 10
    inventory = desk.inventory(CHECKPOINT)
    assert inventory.line_counts == {"agent_a": 1, "agent_b": 0}
    assert [line.rollout_id for line in inventory.continuations["agent_a"]] == ["p7_g2"]
    assert inventory.continuations["agent_b"] == []
    assert set(inventory.sessions) == {"counter", "tools"}
    assert inventory.sessions["counter"][0].revision == 3
    assert set(inventory.storage) == {"policy_model", "judge"}
    with pytest.raises(StaleCheckpoint):
        desk.inventory("another")


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
    monkeypatch.setattr(restore_phases, "PATIENCE_S", 0.3)

    async def restored(body: dict) -> dict:
        answer = fakes["agent_b"].default("restore", body)
        if trouble == "silent":
            fakes["agent_b"].hang("status")
        else:
            fakes["agent_b"].fail("status", *[StaleInstance("another life")] * 99)
        return answer

    fakes["agent_b"].scripts["restore"] = restored
    with pytest.raises(TurnpointError) as caught:
        await GymDesk(fleet).restore("restore-1", CHECKPOINT, Path("/s"), [])
    assert (caught.value.code, caught.value.participant) == (code, "agent_b")
    assert caught.value.code not in ABOUT_THE_SNAPSHOT


async def test_renewing_before_all_kinds_are_prepared_counts_as_held(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    desk = GymDesk(fleet)
    fakes["policy_model"].holder = CHECKPOINT
    assert await desk.renew(CHECKPOINT, 3)
    await desk.prepare(CHECKPOINT, 5, 5)
    assert await desk.renew(CHECKPOINT, 3)
    fakes["counter"].holder = None
    assert not await desk.renew(CHECKPOINT, 3)


async def test_nobody_is_asked_any_more_once_the_proof_of_a_driver_is_over(
    fakes: FakeFleet, fleet: Fleet
) -> None:
    """Invariant 3. Break: rl/nemo_gym/service.py: drop `left_s <= 0` from `_driven_s`; seen red."""
    desk = GymDesk(fleet)
    fakes["policy_model"].hang("prepare", 0.4)
    with pytest.raises(StaleCheckpoint):
        await desk.prepare(CHECKPOINT, 5, 0.3)
    assert fakes.kinds("prepare") == [Kind.MODEL]
    with pytest.raises(StaleCheckpoint):
        await desk.commit(CHECKPOINT, 5, Path("/s"))
    assert fakes.kinds("commit") == []


async def test_no_call_goes_on_after_a_phase_was_cancelled(fakes: FakeFleet, fleet: Fleet) -> None:
    fakes["policy_model"].hang("prepare", 0.3)
    task = asyncio.create_task(save_phases.prepare(fleet, CHECKPOINT, 5, driven))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.4)
    assert fakes.kinds("prepare") == [Kind.MODEL]


def test_errors_of_the_fan_out_survive_pickle() -> None:
    import pickle

    error = NotHeld("x", participant="counter", details={"servers": {"counter": "open"}})
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, TurnpointError)
    assert (str(again), again.details) == (str(error), error.details)
    assert ServerUnreachable.retryable
