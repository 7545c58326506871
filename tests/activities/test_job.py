"""Claiming a job for a restore: who is in the way, and what is touched when (design section 5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.testing import ActivityEnvironment

from activities import job as job_activities
from activities.contract.restore import ClaimRequest, ClaimResult
from activities.job import JobActivities
from gym.client import GymClient
from gym.protocol import DeadlineExceeded
from rl import job, living_actors
from rl.config import JobConfig
from rl.errors import JobAlive, NoSnapshot, OtherJob, Superseded
from rl.messages import ControllerStatus
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from tests.activities.not_driven import not_driven
from tests.rl.folder_cases import config_of
from tests.workers.observations import status
from workflows.journal import JOB


class Cluster:
    """A cluster with a controller, and a Temporal without workflows; what is done is noted."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.controller: ControllerStatus | Exception | None = None
        self.data: str | None = None
        self.done: list[str] = []

    async def alive(self, _: JobConfig) -> ControllerStatus | None:
        if isinstance(self.controller, Exception):
            raise self.controller
        return self.controller

    async def data_plane_job(self) -> str | None:
        return self.data

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
    monkeypatch.setattr(job, "data_plane_job", found.data_plane_job)
    monkeypatch.setattr(living_actors, "find_all", found.actors)
    monkeypatch.setattr(living_actors, "kill", found.kill_actors)
    monkeypatch.setattr(job_activities, "prove", proven)
    monkeypatch.setattr(SnapshotFolder, "candidates", lambda *_: ["snapshot_000001"])
    monkeypatch.setattr(job_activities, "pause_for_restore", paused)
    monkeypatch.setattr("activities.group.driving", not_driven)
    return found


class Found:
    """An open workflow as a list shows it."""

    def __init__(self, id: str, job_id: str | None, *, run_id: str = "another") -> None:
        self.id, self.run_id = id, run_id
        pairs = [SearchAttributePair(JOB, job_id)] if job_id is not None else []
        self.typed_search_attributes = TypedSearchAttributes(pairs)


class Temporal:
    """Lists the workflows it is given, and writes down which are terminated."""

    def __init__(self, *found: Found) -> None:
        self._found = found
        self.query = ""
        self.terminated: list[str] = []

    async def list_workflows(self, query: str) -> AsyncIterator[Found]:
        self.query = query
        for found in self._found:
            yield found

    def get_workflow_handle(self, id: str, *, run_id: str) -> Any:
        temporal = self

        class Handle:
            async def terminate(self, *, reason: str) -> None:
                assert run_id == "another"
                temporal.terminated.append(id)

        return Handle()


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
    assert claimed.restore_wait_s == cluster.config.restore_wait_s
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


@pytest.mark.parametrize("state", ["running", "finished", "failed"])
async def test_another_job_of_the_cluster_is_never_replaced(cluster: Cluster, state: str) -> None:
    """Its rows are in the cluster whatever has become of it. Break: refuse only a running one."""
    cluster.controller = status(state, job_id="other")
    with pytest.raises(OtherJob, match="'other'"):
        await cluster.claim(replace=True)
    assert cluster.done == []
    assert incarnations.newest(cluster.config.job_folder) == 1


@pytest.mark.parametrize("silent", [False, True])
async def test_the_data_of_another_job_is_not_replaced_without_its_controller(
    cluster: Cluster, silent: bool
) -> None:
    """Break: ask the controller alone."""
    cluster.controller = DeadlineExceeded("no answer") if silent else None
    cluster.data = "other"
    with pytest.raises(OtherJob, match="'other'"):
        await cluster.claim(replace=True)
    assert cluster.done == []


async def test_the_jobs_open_workflows_are_ended_whatever_their_id_and_no_other(
    cluster: Cluster,
) -> None:
    """Break: go by the ids alone; or by the query alone."""
    temporal = Temporal(
        Found("job-1/save/a", None),
        Found("job-1/restore/x", "job-1", run_id="run-x"),
        Found("by-hand", "job-1"),
        Found("job-1/save/of-another", "job-2"),
    )
    activities = JobActivities(cast(Client, temporal), cluster.config, cast(GymClient, None))
    request = ClaimRequest(job_id="job-1", workflow_id="job-1/restore/x", run_id="run-x")
    assert await activities._terminate_others(request) == ["job-1/save/a", "by-hand"]
    assert temporal.terminated == ["job-1/save/a", "by-hand"]
    assert 'TurnpointJob = "job-1"' in temporal.query
    assert 'WorkflowType IN ("SaveSnapshot", "RestoreSnapshot", "PruneSnapshots")' in temporal.query


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
    monkeypatch.setattr("activities.group.driving", not_driven)
    with pytest.raises(NoSnapshot):
        await cluster.claim(replace=True)
    assert cluster.done == []
    assert incarnations.newest(cluster.config.job_folder) == 1
