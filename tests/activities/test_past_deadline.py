"""A phase whose deadline has passed before it starts calls no server and changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import driving
from activities.contract import save
from activities.controller import ControllerActivities
from activities.folder import FolderActivities
from activities.gym import GymActivities
from activities.job import JobActivities
from gym.client import GymClient
from gym.protocol import DeadlineExceeded, PrepareRequest
from rl.config import JobConfig, SaveSettings
from rl.snapshots.folder import SnapshotFolder
from tests.rl.folder_cases import FIRST, config_of, start_job, topology, write_files

Case = tuple[Callable[..., Awaitable[Any]], save.CheckpointRequest]
PAST = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(seconds=1)
SETTINGS = {
    "close_admission": "prepare_timeout_s",
    "prepare_checkpoint": "prepare_timeout_s",
    "commit_checkpoint": "commit_timeout_s",
    "cut_rl_state": "cut_timeout_s",
    "publish_snapshot": "publish_timeout_s",
}


def case_of(phase: str, config: JobConfig, deadline: datetime) -> Case:
    """The activity and a request that it would take, but for the deadline."""
    client = cast(Client, None)
    controller = ControllerActivities(client, config)
    servers = GymActivities(client, config, cast(GymClient, None))
    folder = SnapshotFolder(config)
    incarnation = start_job(config)
    reserved = folder.reserve(FIRST, incarnation)
    files = write_files(folder.path / reserved.tmp)
    ids: dict[str, Any] = {
        "job_id": config.job_id,
        "checkpoint_id": FIRST,
        "incarnation": incarnation,
        "lease_s": 5,
        "deadline": deadline,
    }
    into = {**ids, "folder": reserved.tmp}
    match phase:
        case "close_admission":
            return controller.close_admission, save.CheckpointRequest(**ids)
        case "prepare_checkpoint":
            return servers.prepare_checkpoint, save.CheckpointRequest(**ids)
        case "commit_checkpoint":
            return servers.commit_checkpoint, save.FolderRequest(**into)
        case "cut_rl_state":
            return controller.cut_rl_state, save.FolderRequest(**into)
    return FolderActivities(client, config).publish_snapshot, save.PublishRequest(
        **into, snapshot=reserved.snapshot, files=files, topology=topology(), counts={}
    )


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


async def run(phase: str, activity: Callable[..., Awaitable[Any]], request: Any) -> Any:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, activity_type=phase)
    return await environment.run(activity, request)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Methods of actors that were called."""
    found: list[str] = []

    async def call(name: str, method: str, *_: Any, **__: Any) -> None:
        found.append(method)

    async def beat(*_: Any) -> None:
        """Send no heartbeat."""

    monkeypatch.setattr("rl.nemo_gym.client.call", call)
    monkeypatch.setattr("rl.controller.client.call", call)
    monkeypatch.setattr(driving, "_beat", beat)
    return found


@pytest.mark.parametrize(("phase", "setting"), SETTINGS.items())
async def test_a_deadline_in_the_past_is_typed_and_nothing_stands_still(
    tmp_path: Path, asked: list[str], phase: str, setting: str
) -> None:
    """Break: ask the actor with what is left below zero; do not ask what is left to publish."""
    config = config_of(tmp_path)
    activity, request = case_of(phase, config, PAST)
    before = names(tmp_path)
    with pytest.raises(DeadlineExceeded, match=f"{phase}: no time is left.* {setting}"):
        await run(phase, activity, request)
    assert setting in SaveSettings.model_fields
    assert asked == []
    assert names(tmp_path) == before


async def test_with_time_left_the_same_request_publishes(tmp_path: Path, asked: list[str]) -> None:
    config = config_of(tmp_path)
    activity, request = case_of(
        "publish_snapshot", config, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=30)
    )
    answer = await run("publish_snapshot", activity, request)
    assert answer.published
    SnapshotFolder(config).verify(answer.snapshot)


def test_every_phase_with_a_deadline_is_here() -> None:
    """The list is compared with the activities whose request has a deadline."""
    rooms = (ControllerActivities, GymActivities, FolderActivities, JobActivities)
    carriers = {
        name
        for room in rooms
        for name, method in vars(room).items()
        if hasattr(method, "__temporal_activity_definition")
        and issubclass(get_type_hints(method)["request"], save.CheckpointRequest)
    }
    assert carriers == set(SETTINGS)
    assert driving.DEADLINE_SETTING == SETTINGS


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_server_takes_no_budget_that_is_no_time(budget_s: float) -> None:
    ids: dict[str, Any] = {"incarnation": 1, "instance_id": "i", "checkpoint_id": "c"}
    with pytest.raises(ValidationError, match="budget_s"):
        PrepareRequest(**ids, budget_s=budget_s, lease_s=5)
