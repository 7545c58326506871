"""The phases of a restore: their order, and what a refusal or a dead server ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.protocol import (
    DigestMismatch,
    InvalidPhase,
    Kind,
    Phase,
    StaleInstance,
    WrittenFile,
)
from rl.nemo_gym import restore as restore_phases
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


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
