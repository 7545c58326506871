"""A fresh start that is refused touches nothing; one that stood still ends nothing newer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import Kind
from rl import job, living_actors
from rl.config import JobConfig, ServerConfig, Workload
from rl.errors import DatasetInvalid, JobAlive, Superseded
from rl.living_actors import LivingActor
from rl.messages import SINGLE_CONTROLLER, ControllerStatus
from rl.snapshots import incarnations
from tests.rl.fakes import AGENT, config
from tests.workers.observations import status


class Servers(Exception):
    """The start has got as far as the Gym servers."""


class Start:
    """A start in a cluster with a dead job's actor; what it does to others is noted.

    Attributes:
        stalls_after: The step after which it stands still while a restore brings the job up.
        answers: What the controller that is there says.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = ServerConfig(name=AGENT, kind=Kind.AGENT, url="http://127.0.0.1:1")
        self.config: JobConfig = config(folder, servers=[agent])
        self.workload = Workload(dataset=folder / "rows.jsonl")
        self.rows_for(AGENT)
        self.there = [LivingActor(SINGLE_CONTROLLER, "turnpoint", "of the dead job")]
        self.done: list[Any] = []
        self.stalls_after: str | None = None
        self.answers: ControllerStatus | None = None
        self._claim, self._monkeypatch = incarnations.claim, monkeypatch
        monkeypatch.setattr(incarnations, "claim", self._claimed_first)
        for name in ("alive_here", "discover_and_join"):
            monkeypatch.setattr(job, name, getattr(self, name))
        for name in ("find_all", "kill"):
            monkeypatch.setattr(living_actors, name, getattr(self, name))

    def rows_for(self, agent: str) -> None:
        row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": agent}}
        self.workload.dataset.write_text(json.dumps(row) + "\n")

    async def begin(self) -> None:
        async with GymClient(SecretStr("t" * 40)) as client:
            await job.start_fresh(
                self.config, self.workload, {"run_id": "one"}, client, on_claimed=self.claimed
            )

    def _stand_still(self, step: str) -> None:
        if step == self.stalls_after:
            self._claim(self.config.job_folder, {"run_id": "a restore"})
            self.there = [LivingActor(SINGLE_CONTROLLER, "turnpoint", "of the restored job")]

    def _claimed_first(self, *given: Any, **more: Any) -> int:
        incarnation = self._claim(*given, **more)
        self._stand_still("claim")
        require = incarnations.require_newest

        def required(*given: Any) -> None:
            require(*given)
            self._monkeypatch.setattr(incarnations, "require_newest", require)
            self._stand_still("question before the kill")

        self._monkeypatch.setattr(incarnations, "require_newest", required)
        return incarnation

    async def alive_here(self, _: JobConfig) -> ControllerStatus | None:
        self._stand_still("look")
        return self.answers

    async def find_all(self) -> list[LivingActor]:
        return list(self.there)

    async def kill(self, killed: list[LivingActor] | None = None) -> list[str]:
        chosen = self.there if killed is None else killed
        self.done += [f"killed the actor {actor.handle}" for actor in chosen]
        self._stand_still("kill")
        return []

    async def claimed(self, incarnation: int) -> None:
        self.done.append(f"restarted servers for {incarnation}")
        self._stand_still("restart")

    async def discover_and_join(self, *_: Any) -> None:
        self.done.append("joined servers")
        raise Servers


KILLED, RESTARTED = "killed the actor of the dead job", "restarted servers for 1"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


async def test_rows_for_another_agent_are_refused_before_anything_is_touched(start: Start) -> None:
    """Break: leave it to the controller; the old line has ended by then."""
    start.rows_for("gone")
    with pytest.raises(DatasetInvalid, match=f"jsonl:1: .*'gone'.*{AGENT}"):
        await start.begin()
    assert start.done == []
    assert not start.config.job_folder.exists()


async def test_a_start_ends_what_is_left_of_the_dead_job_after_its_claim(start: Start) -> None:
    with pytest.raises(Servers):
        await start.begin()
    assert start.done == [KILLED, RESTARTED, "joined servers"]


@pytest.mark.parametrize(
    ("owner", "state", "refused"),
    [
        ({}, "starting", False),
        ({}, "running", True),
        ({"workflow_id": "w"}, "starting", True),
        ({"workflow_id": "w"}, "restored", True),
        ({}, "failed", False),
    ],
)
async def test_a_start_that_died_on_its_way_is_no_life_and_a_restore_on_its_way_is_one(
    start: Start, owner: dict[str, str], state: str, refused: bool
) -> None:
    """Break: rl/job.py: go by whether the job is over; the next `turnpoint run` is refused."""
    incarnations.claim(start.config.job_folder, {"run_id": "another", **owner})
    start.answers = status(state, incarnation=1)
    with pytest.raises(JobAlive if refused else Servers):
        await start.begin()
    assert (start.done == []) is refused


@pytest.mark.parametrize(
    ("stalls_after", "done"),
    [
        ("look", []),
        ("claim", []),
        ("question before the kill", [KILLED]),  # it ends whom it saw before its claim
        ("kill", [KILLED]),
        ("restart", [KILLED, RESTARTED]),
    ],
)
async def test_a_start_that_stood_still_touches_nothing_of_a_newer_incarnation(
    start: Start, stalls_after: str, done: list[str]
) -> None:
    """Invariant 7. Meanwhile a restore claims the next incarnation and brings the job up.

    Break: rl/job.py: do not ask before one of the steps; or kill the actors that live by then.
    """
    start.stalls_after = stalls_after
    with pytest.raises(Superseded):
        await start.begin()
    assert start.done == done
    assert incarnations.newest(start.config.job_folder) == (1 if stalls_after == "look" else 2)
