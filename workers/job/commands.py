"""Starting, saving, pruning and restoring a job: the work of `run`, `save`, `prune`, `restore`.

A local stack's Gym servers are restarted here if they are in another phase than the job needs
(awaiting a restore, or closed for a new line): a workflow cannot restart processes. It happens
only after the new incarnation was claimed, and only while its start or restore waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from temporalio.client import WorkflowHandle

from activities.contract import (
    Progress,
    PruneInput,
    PruneResult,
    RestoreInput,
    RestoreResult,
    SaveInput,
    SaveResult,
)
from activities.schedule import set_schedule
from gym.protocol import Phase
from rl.config import JobConfig, Workload
from rl.errors import NoSnapshot, RayUnreachable
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.one_job import blocks_start
from workers.config.settings import Settings
from workers.errors import Refused
from workers.job import ray_client as ray_side
from workers.job.restarts import Restarter
from workers.job.status import controller_status
from workers.job.workflows import (
    OnProgress,
    WorkflowFailed,
    follow,
    progress_of,
    start,
    workflow_id,
)
from workers.stack.stack import Stack
from workers.temporal import connect, typed_refusals

Result = TypeVar("Result", bound=BaseModel)
OnStarted = Callable[[str], None]

REFUSALS = {
    *("unchanged", "weights_syncing", "checkpoint_running", "restore_not_finished"),
    *("data_plane_busy", "no_space", "server_unfit", "job_finished", "job_alive"),
}
"""Failure types that say "not now" rather than "it went wrong": exit code 3, unless the workflow
had changed something by then."""


def _ignore(workflow_id: str) -> None:
    """Do nothing on the start of a workflow."""


class NotNow(Refused):
    """A workflow that the controller refused.

    Args:
        reason: Its stable code, one of `REFUSALS`.
        message: The sentence.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = reason  # type: ignore[misc]


class Begun(BaseModel):
    """The beginning of a job."""

    model_config = ConfigDict(frozen=True)

    incarnation: int
    restored: RestoreResult | None
    """None: it began from the start."""


async def begin(
    settings: Settings,
    workload: Workload,
    *,
    fresh: bool,
    on_progress: OnProgress,
    replace: bool = False,
    restarter: Restarter | None = None,
) -> Begun:
    """Start the job, from the newest snapshot of its line unless `fresh` or there is none.

    Args:
        settings: Of the job.
        workload: The rollouts of a fresh start.
        fresh: Start a new line even if there are snapshots.
        on_progress: Called with the phases of a restore.
        replace: End a life of the job that still answers.
        restarter: The caller's, if it has one: two would get in each other's way.

    Raises:
        Refused: A live job is in the way, and `replace` was not asked for.
        RayCallFailed: The start failed.
        WorkflowFailed: The restore failed.
        NotRunning, TemporalRefused: Temporal does not answer; the job may have begun.
    """
    config = settings.job_config()
    restarter = restarter or Restarter(settings)
    if has_snapshot_on_line(config) and not fresh:
        given = RestoreInput(job_id=config.job_id, replace=replace)
        restored = await restore(settings, given, on_progress, restarter=restarter)
        begun = Begun(incarnation=restored.incarnation, restored=restored)
    else:

        async def on_claimed(incarnation: int) -> None:
            await restarter.bring_gym_into(Phase.CLOSED, incarnation)

        incarnation = await ray_side.start_fresh(
            settings, workload, replace=replace, on_claimed=on_claimed
        )
        begun = Begun(incarnation=incarnation, restored=None)
    client = await connect(settings)
    with typed_refusals():
        await set_schedule(client, config.job_id, settings.snapshot_attempt_interval_s)
    return begun


def has_snapshot_on_line(config: JobConfig) -> bool:
    """True if the job's current line has a snapshot, intact or not."""
    try:
        return bool(SnapshotFolder(config).candidates("latest"))
    except NoSnapshot:
        return False


async def save(
    settings: Settings,
    given: SaveInput,
    on_progress: OnProgress,
    on_started: OnStarted = _ignore,
) -> SaveResult:
    """Run `SaveSnapshot` and follow it.

    Args:
        settings: Of the job.
        given: Input of the workflow.
        on_progress: Called with the phases.
        on_started: Called with the workflow's id once Temporal has it: from here on it needs
            no command to go on.

    Raises:
        Refused: The controller refuses a save now.
        WorkflowFailed: It failed.
    """
    id = workflow_id(given.job_id, "save", given.name)
    handle = await _start(settings, "SaveSnapshot", given, id, on_started)
    return await _follow(handle, SaveResult, on_progress)


async def prune(settings: Settings, given: PruneInput, on_progress: OnProgress) -> PruneResult:
    """Run `PruneSnapshots` and follow it.

    Raises:
        Refused: A restore is under way.
        WorkflowFailed: It failed.
    """
    id = workflow_id(given.job_id, "prune")
    handle = await _start(settings, "PruneSnapshots", given, id, _ignore)
    return await _follow(handle, PruneResult, on_progress)


async def restore(
    settings: Settings,
    given: RestoreInput,
    on_progress: OnProgress,
    *,
    on_started: OnStarted = _ignore,
    restarter: Restarter | None = None,
) -> RestoreResult:
    """Run `RestoreSnapshot` and follow it.

    A local stack's Gym servers that do not await a restore are restarted while the workflow waits
    for its servers, and at no other time: before it they are a live job's, after it the restored
    job's.

    Args:
        settings: Of the job.
        given: Input of the workflow.
        on_progress: Called with the phases.
        on_started: As in `save`.
        restarter: As in `begin`.

    Raises:
        Refused: A live job is in the way, and `replace` was not asked for.
        WorkflowFailed: It failed.
    """
    id = workflow_id(given.job_id, "restore")
    handle = await _start(settings, "RestoreSnapshot", given, id, on_started)
    restarter = restarter or Restarter(settings)
    waiting: asyncio.Queue[int] = asyncio.Queue()

    def looked(progress: Progress) -> None:
        on_progress(progress)
        incarnation = _waits_for_servers(progress)
        if incarnation is not None and waiting.empty():
            waiting.put_nowait(incarnation)

    async def still_waits() -> bool:
        progress = await progress_of(handle)
        return progress is not None and _waits_for_servers(progress) is not None

    following = asyncio.create_task(_follow(handle, RestoreResult, looked), name="follow-restore")
    try:
        brought = False
        while not brought and (incarnation := await _next(waiting, following)) is not None:
            brought = await restarter.bring_gym_into(
                Phase.AWAITING_RESTORE, incarnation, still_needed=still_waits
            )
        return await following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _next(waiting: asyncio.Queue[int], following: asyncio.Task[Any]) -> int | None:
    """The next incarnation in the queue; None once the task is over."""
    asking = asyncio.ensure_future(waiting.get())
    try:
        await asyncio.wait({asking, following}, return_when=asyncio.FIRST_COMPLETED)
        return None if following.done() else asking.result()
    finally:
        asking.cancel()


def _waits_for_servers(progress: Progress) -> int | None:
    """The incarnation that a restore has claimed, while it waits for its Gym servers."""
    return progress.incarnation if progress.phase == "discover_capabilities" else None


async def require_no_job(settings: Settings) -> None:
    """Check that the job does not live. Joins Ray.

    Raises:
        Refused: It lives.
        NotRunning: The cluster does not answer because the stack is down.
        RayUnreachable: It does not answer at the address that is named.
    """
    config = settings.job_config()
    try:
        now = await controller_status(settings, config)
    except RayUnreachable as error:
        Stack(settings).require_running()
        raise RayUnreachable(f"{error.message} (ray_address: {settings.ray_address})") from None
    if now is not None and blocks_start(config.job_folder, now):
        raise Refused(
            f"job {now.job_id} runs already as incarnation {now.incarnation}; `turnpoint restore "
            "--replace` takes it back to the snapshot, `turnpoint down` ends it with its stack, "
            "`turnpoint save` saves it first"
        )


async def _start(
    settings: Settings, workflow: str, given: BaseModel, id: str, on_started: OnStarted
) -> WorkflowHandle[Any, Any]:
    handle = await start(await connect(settings), workflow, given, id)
    on_started(id)
    return handle


async def _follow(
    handle: WorkflowHandle[Any, Any], result_type: type[Result], on_progress: OnProgress
) -> Result:
    """Follow a workflow; a failure that has changed nothing is a refusal."""
    try:
        return await follow(handle, result_type, on_progress)
    except WorkflowFailed as error:
        if error.type in REFUSALS and not _had_begun(await progress_of(handle)):
            raise NotNow(error.type, str(error)) from None
        raise


def _had_begun(progress: Progress | None) -> bool:
    """True if a workflow that failed was past its first step: the pause, or a claimed job.

    The same type may come from either: a disk is full before the pause, and in it.
    """
    return progress is not None and (progress.incarnation is not None or len(progress.done) > 1)
