"""Claiming a job for a restore: who is in the way, and what is touched when (design section 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import job as job_activities
from activities.contract import ClaimRequest, ClaimResult
from activities.job import JobActivities
from gym.client import GymClient
from gym.protocol import DeadlineExceeded
from rl import incarnations, job
from rl.errors import JobAlive, NoSnapshot, Superseded
from rl.messages import ControllerStatus, JobConfig
from rl.snapshot_folder import SnapshotFolder
from tests.rl.folder_cases import config_of
from tests.workers.test_supervision import status


class Cluster:
    """A cluster with a controller, and a Temporal without workflows; what is done is noted."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.controller: ControllerStatus | Exception | None = None
        self.done: list[str] = []

    async def alive(self, _: JobConfig) -> ControllerStatus | None:
        if isinstance(self.controller, Exception):
            raise self.controller
        return self.controller

    async def actors(self) -> list[Any]:
        return []

    async def kill_actors(self, _: list[Any]) -> list[str]:
        assert incarnations.owned_by(self.config.job_folder, "run-x"), "killed before the claim"
        self.done.append("kill_actors")
        return []

    async def claim(self, *, replace: bool) -> ClaimResult:
        async def none(*_: Any) -> list[str]:
            return []

        activities = JobActivities(cast(Client, None), self.config, cast(GymClient, None))
        activities._terminate_others = none  # type: ignore[method-assign]
        request = ClaimRequest(
            job_id="job-1", workflow_id="job-1/restore/x", run_id="run-x", replace=replace
        )
        return cast(ClaimResult, await ActivityEnvironment().run(activities.claim_job, request))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster(config_of(tmp_path))
    incarnations.claim(found.config.job_folder, {"run_id": "first"})

    async def paused(*_: Any) -> bool:
        return False

    async def proven(*_: Any) -> None:
        return None

    monkeypatch.setattr(job, "alive", found.alive)
    monkeypatch.setattr(job, "actors", found.actors)
    monkeypatch.setattr(job, "kill_actors", found.kill_actors)
    monkeypatch.setattr(job_activities, "prove", proven)
    monkeypatch.setattr(SnapshotFolder, "candidates", lambda *_: ["snapshot_000001"])
    monkeypatch.setattr(job_activities, "pause_for_restore", paused)
    monkeypatch.setattr(job_activities, "driving", _not_driven)
    return found


class _not_driven:  # stands for an asynchronous context
    def __init__(self, *_: Any) -> None:
        pass

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_a_live_job_is_refused_and_nothing_is_touched(cluster: Cluster) -> None:
    cluster.controller = status(incarnation=1, job_id="job-1")
    with pytest.raises(JobAlive, match="--replace"):
        await cluster.claim(replace=False)
    assert cluster.done == []
    assert incarnations.newest(cluster.config.job_folder) == 1


@pytest.mark.parametrize("silent", [False, True])
async def test_a_live_job_is_replaced_only_after_the_claim(cluster: Cluster, silent: bool) -> None:
    """Break: kill the actors first, and a claim that is lost has killed the job."""
    live = status(incarnation=1, job_id="job-1")
    cluster.controller = DeadlineExceeded("no answer") if silent else live
    claimed = await cluster.claim(replace=True)
    assert claimed.incarnation == 2
    assert cluster.done == ["kill_actors"]


async def test_a_replacement_that_loses_the_claim_touches_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.controller = status(incarnation=1, job_id="job-1")
    alive: Callable[..., Any] = cluster.alive

    async def while_another_claims(config: JobConfig) -> ControllerStatus | None:
        incarnations.claim(config.job_folder, {"run_id": "another"})
        found: ControllerStatus | None = await alive(config)
        return found

    monkeypatch.setattr(job, "alive", while_another_claims)
    with pytest.raises(Superseded):
        await cluster.claim(replace=True)
    assert cluster.done == []


async def test_another_job_of_the_cluster_is_never_replaced(cluster: Cluster) -> None:
    cluster.controller = status(job_id="other")
    with pytest.raises(JobAlive, match="other"):
        await cluster.claim(replace=True)
    assert cluster.done == []


async def test_a_silent_controller_is_no_reason_to_claim_without_replace(cluster: Cluster) -> None:
    cluster.controller = DeadlineExceeded("no answer")
    with pytest.raises(DeadlineExceeded):
        await cluster.claim(replace=False)
    assert incarnations.newest(cluster.config.job_folder) == 1


async def test_a_restore_of_nothing_touches_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that has finished must not be lost to a restore that cannot succeed."""
    monkeypatch.undo()
    monkeypatch.setattr(job_activities, "driving", _not_driven)
    with pytest.raises(NoSnapshot):
        await cluster.claim(replace=True)
    assert cluster.done == []
    assert incarnations.newest(cluster.config.job_folder) == 1
