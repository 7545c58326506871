"""Activities of the Single Controller: begin, close admission, cut, open again.

Each only calls the actor's method of the same name; the controller makes repeats harmless by
checkpoint id (design section 4).
"""

from __future__ import annotations

import asyncio

from temporalio import activity
from temporalio.client import Client

from activities.contract.save import (
    BeginRequest,
    BeginResult,
    CheckpointRequest,
    CloseAdmissionResult,
    CutResult,
    FolderRequest,
)
from activities.driving import driving
from activities.leases import renewal
from rl.actors import call
from rl.errors import ActorLost, ControllerLost, OtherJob, RestoreNotFinished
from rl.messages import SINGLE_CONTROLLER, JobConfig
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder

BEGIN_LIMIT_S = 25.0


class ControllerActivities:
    """What a save asks of the Single Controller."""

    def __init__(self, client: Client, config: JobConfig) -> None:
        """Take what every call needs.

        Args:
            client: Temporal, for the proof that a try is still waited for.
            config: The job that this worker serves.
        """
        self._client = client
        self._config = config

    @activity.defn
    async def begin_checkpoint(self, request: BeginRequest) -> BeginResult:
        """Step 0: the controller agrees and reserves the folder, or says why not.

        Raises:
            ControllerLost: No controller of this job answers: restore it.
            OtherJob: This worker, or the controller of its cluster, serves another job.
            FolderError: The manifest could not be sealed: its key cannot be read here.
        """
        check_job(self._config, request.job_id)
        await asyncio.to_thread(SnapshotFolder(self._config).demand_key)
        async with driving(self._client, None) as budget:
            try:
                answer = await call(
                    SINGLE_CONTROLLER,
                    "begin_checkpoint",
                    request.job_id,
                    request.checkpoint_id,
                    request.name,
                    limit_s=BEGIN_LIMIT_S,
                )
            except ActorLost as error:
                if (refused := await asyncio.to_thread(self._starting)) is not None:
                    return refused
                raise ControllerLost(
                    "the job has no controller: `turnpoint run` starts it, or brings it back from "
                    "its newest snapshot; `turnpoint restore` does only the latter",
                    participant=SINGLE_CONTROLLER,
                ) from error
            return BeginResult(**answer.model_dump(), ms=budget.elapsed_ms())

    def _starting(self) -> BeginResult | None:
        """The refusal while a claimed incarnation has no origin yet: its start is on its way."""
        folder = self._config.job_folder
        newest = incarnations.newest(folder)
        if not newest or incarnations.origin(folder, newest) is not None:
            return None
        return BeginResult(
            agreed=False,
            refusal=RestoreNotFinished.code,
            reason=f"incarnation {newest} does not run yet: wait for its start or restore; if that "
            "has failed, restore the job with `turnpoint restore`",
            incarnation=newest,
            ms=0,
        )

    @activity.defn
    async def close_admission(self, request: CheckpointRequest) -> CloseAdmissionResult:
        """Step 1: no new rollout is sent, and every result owed is acknowledged."""
        async with driving(
            self._client, request.deadline, lease_s=request.lease_s, renew=renewal(request)
        ) as budget:
            acknowledged = await call(
                SINGLE_CONTROLLER,
                "close_admission",
                request.incarnation,
                request.checkpoint_id,
                budget.left_s(),
            )
            return CloseAdmissionResult(acknowledged=acknowledged, ms=budget.elapsed_ms())

    @activity.defn
    async def cut_rl_state(self, request: FolderRequest) -> CutResult:
        """Step 3: RL's own files under the data-plane barrier, and everybody confirmed held."""
        async with driving(
            self._client, request.deadline, lease_s=request.lease_s, renew=renewal(request)
        ) as budget:
            answer = await call(
                SINGLE_CONTROLLER,
                "cut_rl_state",
                request.incarnation,
                request.checkpoint_id,
                request.folder,
                budget.left_s(),
            )
            return CutResult(**answer.model_dump(), ms=budget.elapsed_ms())


def check_job(config: JobConfig, job_id: str) -> None:
    """Refuse a request about another job than this worker's.

    Raises:
        OtherJob: The worker serves another job; both are named.
    """
    if job_id != config.job_id:
        raise OtherJob(f"this worker serves job {config.job_id!r}, not {job_id!r}")
