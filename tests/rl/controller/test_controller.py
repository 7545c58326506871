"""The controller before its start, and what it refuses to start with."""

import json
from pathlib import Path

import pytest

from rl.errors import (
    ControllerLost,
    DatasetInvalid,
)
from tests.rl.controller.saving import A
from tests.rl.fakes import World


async def test_a_controller_that_was_not_started_refuses_everything(tmp_path: Path) -> None:
    controller = World(tmp_path).controller
    with pytest.raises(ControllerLost):
        await controller.saves.begin(A, None)
    with pytest.raises(ControllerLost):
        await controller.saves.close_admission(A, 1)
    with pytest.raises(ControllerLost):
        await controller.saves.cut(A, "tmp", 1)
    for refused in (
        lambda: controller.saves.renew(A, 1),
        lambda: controller.saves.resume(A, None),
        controller.start_pumps,
    ):
        with pytest.raises(ControllerLost):
            refused()
    assert controller.status().state == "starting"


async def test_a_job_whose_rows_are_for_another_agent_is_not_started(tmp_path: Path) -> None:
    """Break: rl/controller/controller.py: install whatever the rows name; every rollout fails."""
    world = World(tmp_path)
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "gymnasium_agent"}}
    world.workload.dataset.write_text(json.dumps(row) + "\n")
    with pytest.raises(DatasetInvalid, match=r"rows.jsonl:1: .*gymnasium_agent.*simple_agent"):
        await world.controller.start_fresh(world.workload)
    assert not world.controller.job.started
