"""Beginning, saving, restoring and following a job: what `run`, `save` and `restore` do.

A local stack's Gym servers are restarted here where the job needs them in another phase than
they are in (awaiting a restore, or closed for a new line): a workflow cannot do that.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from temporalio.client import Client

from activities.contract import RestoreInput, RestoreResult, SaveInput, SaveResult
from activities.schedule import ensure_schedule
from gym.client import GymClient
from gym.protocol import Phase
from rl.messages import ControllerStatus, Workload
from rl.snapshot_folder import SnapshotFolder
from workers.errors import NotRunning, Refused
from workers.job_status import OVER, controller_status, gym_phases, use_ray_of
from workers.key_files import read_secret
from workers.settings import Settings
from workers.stack import Stack
from workers.temporal import connect
from workers.workflow_runs import Shown, WorkflowFailed, follow, start, workflow_id

Result = TypeVar("Result", bound=BaseModel)

FOLLOW_EVERY_S = 0.5
REFUSALS = {
    *("unchanged", "weights_syncing", "checkpoint_running", "restore_not_finished"),
    *("data_plane_busy", "no_space", "server_unfit", "job_finished", "job_alive"),
}
"""Failure types that say "not now" rather than "it went wrong": exit code 3."""


class Begun(BaseModel):
    """How a job began."""

    model_config = ConfigDict(frozen=True)

    incarnation: int
    restored: RestoreResult | None
    """None: it began from the start."""


async def begin(settings: Settings, workload: Workload, *, fresh: bool, shown: Shown) -> Begun:
    """Start the job, from its newest snapshot unless `fresh` or there is none.

    Raises:
        Refused: A live job is in the way.
        WorkflowFailed: The restore failed.
    """
    config = settings.job_config()
    await _demand_no_job(settings)
    from rl import job  # Ray and torch: seconds that other commands do not pay

    if SnapshotFolder(config).snapshots() and not fresh:
        given = RestoreInput(job_id=config.job_id)
        restored = await restore(settings, given, shown)
        begun = Begun(incarnation=restored.incarnation, restored=restored)
    else:
        await _bring_gym_into(settings, Phase.CLOSED)
        owner = {"run_id": str(uuid.uuid4()), "started_by": "turnpoint run"}
        async with GymClient(read_secret(settings)) as gym:
            incarnation = await job.start_fresh(config, workload, owner, gym)
        begun = Begun(incarnation=incarnation, restored=None)
    if settings.snapshot_attempt_interval_s is not None:
        client = await connect(settings)
        await ensure_schedule(client, config.job_id, settings.snapshot_attempt_interval_s)
    return begun


async def save(settings: Settings, given: SaveInput, shown: Shown) -> SaveResult:
    """Run `SaveSnapshot` and follow it.

    Raises:
        Refused: The controller refuses a save now.
        WorkflowFailed: It failed.
    """
    client = await connect(settings)
    id = workflow_id(given.job_id, "save", given.name)
    handle = await start(client, "SaveSnapshot", given, id)
    return await _telling_refusals(follow(handle, SaveResult, shown))


async def restore(settings: Settings, given: RestoreInput, shown: Shown) -> RestoreResult:
    """Run `RestoreSnapshot` and follow it.

    Raises:
        Refused: A live job is in the way, and `replace` was not asked for.
        WorkflowFailed: It failed.
    """
    client: Client = await connect(settings)
    if not given.replace:
        await _demand_no_job(settings)
        await _bring_gym_into(settings, Phase.AWAITING_RESTORE)
    handle = await start(client, "RestoreSnapshot", given, workflow_id(given.job_id, "restore"))
    return await _telling_refusals(follow(handle, RestoreResult, shown))


async def follow_job(
    settings: Settings, shown: Callable[[ControllerStatus], None]
) -> ControllerStatus:
    """Look at the job until it is over.

    Returns:
        The controller's last status.

    Raises:
        NotRunning: The controller has gone: the job ended without an end.
    """
    config = settings.job_config()
    while True:
        now = await controller_status(settings, config)
        if now is None:
            raise NotRunning(
                "the job's controller is gone; `turnpoint restore` brings the job back from its "
                "newest snapshot (after `turnpoint down` and `turnpoint up` if processes died)"
            )
        shown(now)
        if now.state in OVER:
            return now
        await asyncio.sleep(FOLLOW_EVERY_S)


async def _demand_no_job(settings: Settings) -> None:
    now = await controller_status(settings, settings.job_config())
    if now is not None and now.state not in OVER:
        raise Refused(
            f"job {now.job_id} runs already as incarnation {now.incarnation}; `turnpoint down` "
            "ends it with its stack, `turnpoint save` saves it first"
        )


async def _bring_gym_into(settings: Settings, phase: Phase) -> None:
    """Restart a local stack's Gym servers unless all are in the phase that a start needs."""
    phases = await gym_phases(settings, settings.job_config())
    usable = {phase}
    if phase is Phase.AWAITING_RESTORE:
        usable |= {Phase.RESTORING, Phase.RESTORED}  # a `join` takes them back
    stack = Stack(settings)
    if all(found in usable for found in phases.values()) or stack.record() is None:
        return
    use_ray_of(settings)
    await asyncio.to_thread(stack.restart_gym, expect_restore=phase is Phase.AWAITING_RESTORE)


async def _telling_refusals(following: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await following
    except WorkflowFailed as error:
        if error.type in REFUSALS:
            raise Refused(str(error)) from None
        raise
