"""A server that is down, answers 500, or has restarted, at each point of a save and a restore.

Each ends in a typed error that names the server, soon, and the others open again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import Phase, ServerFault, StaleInstance, TurnpointError
from rl.nemo_gym import restore as restore_phases
from rl.nemo_gym import save as save_phases
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet, fake_fleet

CHECKPOINT = "checkpoint-1"
LEASE_S = 0.6
DEADLINE_S = 30.0
TROUBLE = ("down", "500", "restarted")
CODES = {"down": "server_unreachable", "500": "server_fault", "restarted": "stale_instance"}


@pytest_asyncio.fixture
async def fakes() -> AsyncIterator[FakeFleet]:
    async with fake_fleet() as fleet:
        yield fleet


@pytest_asyncio.fixture
async def fleet(fakes: FakeFleet) -> AsyncIterator[Fleet]:
    async with GymClient(SecretStr("token")) as client:
        yield Fleet(client, fakes.joined(), 1)


async def make(trouble: str, fakes: FakeFleet, operation: str, name: str = "counter") -> None:
    """Bring one server into trouble before an operation."""
    if trouble == "down":
        await fakes[name].stop()
    else:
        errors = {"500": ServerFault("secret text"), "restarted": StaleInstance("another life")}
        fakes[name].fail(operation, *[errors[trouble]] * 1000)


def lease_left() -> float:
    return LEASE_S


async def _prepare(fleet: Fleet) -> None:
    await save_phases.prepare(fleet, CHECKPOINT, DEADLINE_S, lease_left)


async def _commit(fleet: Fleet) -> None:
    await save_phases.commit(fleet, CHECKPOINT, DEADLINE_S, Path("/s"), lease_left)


async def _wait_idle(fleet: Fleet) -> None:
    await save_phases.wait_idle(fleet, CHECKPOINT, time.monotonic() + DEADLINE_S, LEASE_S)


async def _cut(fleet: Fleet) -> None:
    await save_phases.confirm_held(fleet, CHECKPOINT, LEASE_S)


async def _restore(fleet: Fleet) -> None:
    await restore_phases.restore(fleet, "restore-1", CHECKPOINT, Path("/s"), [])


async def _resume(fleet: Fleet) -> None:
    await restore_phases.resume_restored(fleet, "restore-1")


POINTS = {
    "before the save": ("prepare", _prepare),
    "prepared": ("status", _wait_idle),
    "between prepare and commit": ("commit", _commit),
    "between commit and cut": ("status", _cut),
    "at restore": ("restore", _restore),
    "at the end of a restore": ("resume", _resume),
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("point", POINTS)
async def test_trouble_is_told_soon_with_the_server_named(
    fakes: FakeFleet, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, point: str, trouble: str
) -> None:
    """Break: repeat a commit until its deadline. All stood still for five minutes.

    Break: rl/nemo_gym/save.py: let `server_unreachable` rise from a commit: Temporal repeats it.
    Break: rl/nemo_gym/restore.py: let it rise from a phase of a restore.
    """
    monkeypatch.setattr(restore_phases, "ANSWER_S", LEASE_S)
    operation, phase = POINTS[point]
    fakes.hold("restore-1" if operation == "resume" else CHECKPOINT)
    await make(trouble, fakes, operation)
    began = time.monotonic()
    with pytest.raises(TurnpointError) as caught:
        await phase(fleet)
    assert time.monotonic() - began < 5
    error = caught.value
    assert error.participant == "counter"
    assert "secret text" not in str(error)
    # Temporal would repeat the phase to its deadline, and all would stand still.
    assert not error.retryable or error.code == "not_ready"
    if point == "between commit and cut":
        assert (error.code, error.details["servers"]) == ("not_held", {"counter": CODES[trouble]})
    elif (point, trouble) in (("before the save", "down"), ("prepared", "down")):
        assert error.code == "not_ready"
        assert error.details["blockers"][0]["where"] == "no_answer"
    elif (point, trouble) == ("between prepare and commit", "down"):
        assert (error.code, error.details["servers"]) == ("not_held", {"counter": CODES[trouble]})
    elif trouble == "down":
        assert error.code == "servers_missing"
    else:
        assert error.code == CODES[trouble]


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_the_others_open_again(fakes: FakeFleet, fleet: Fleet, trouble: str) -> None:
    fakes.hold(CHECKPOINT)
    await make(trouble, fakes, "resume")
    reports = await save_phases.resume_servers(fleet.client, fleet.servers, 1, CHECKPOINT, LEASE_S)
    assert [report.server for report in reports if report.note] == ["counter"]
    assert all(fakes[name].phase is Phase.OPEN for name in fakes.servers if name != "counter")


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_before_anything_stands_still_it_is_absent_from_the_statuses(
    fakes: FakeFleet, fleet: Fleet, trouble: str
) -> None:
    """The controller refuses the save: `server_unfit` (tests/rl/controller/test_save.py)."""
    await make(trouble, fakes, "status")
    async with asyncio.timeout(5):
        found = await fleet.statuses()
    assert {status.server for status in found} == set(fakes.servers) - {"counter"}
