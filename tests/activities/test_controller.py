"""`begin_checkpoint` while no controller of the job answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.contract.save import BeginRequest
from activities.controller import ControllerActivities
from rl.config import JobConfig
from rl.errors import (
    ActorLost,
    ControllerLost,
    FolderError,
)
from rl.snapshots import incarnations
from tests.activities.not_driven import not_driven


async def _begin(config: JobConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def no_actor(*_: Any, **__: Any) -> Any:
        raise ActorLost("there is no such actor")

    monkeypatch.setattr("rl.controller.client.call", no_actor)
    monkeypatch.setattr("activities.group.driving", not_driven)
    activities = ControllerActivities(cast(Client, None), config)
    request = BeginRequest(job_id=config.job_id, checkpoint_id="c1", name=None)
    return await ActivityEnvironment().run(activities.begin_checkpoint, request)


async def test_a_save_while_a_restore_runs_is_refused_and_says_to_wait(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: say that the job has no controller; a second restore would end the first."""
    answer = await _begin(config, monkeypatch)
    assert (answer.agreed, answer.refusal) == (False, "restore_not_finished")
    assert "incarnation 2" in answer.reason and "wait for" in answer.reason


async def test_a_save_without_a_job_says_how_to_bring_it_back(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    incarnations.record_origin(config.job_folder, 2, "snapshot_000002")
    with pytest.raises(ControllerLost, match=r"`turnpoint run` starts it.*`turnpoint restore`"):
        await _begin(config, monkeypatch)


async def test_without_its_key_a_save_is_refused_before_the_controller_is_asked(
    config: JobConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: activities/controller.py: leave it to `publish`, with all rollouts waiting."""
    gone = config.model_copy(update={"snapshot_key_file": tmp_path / "gone"})
    with pytest.raises(FolderError, match="put the key back"):
        await _begin(gone, monkeypatch)
