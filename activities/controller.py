"""Activities of the Single Controller: begin, close admission, cut, open again.

Each only calls the actor's method of the same name; the controller makes repeats harmless by
checkpoint id (design section 4).
"""

from __future__ import annotations

import asyncio

from temporalio import activity

from activities.contract import save
from activities.group import ActivityGroup
from rl.controller.client import SingleControllerClient
from rl.errors import ActorLost, ControllerLost, RestoreNotFinished
from rl.messages import SINGLE_CONTROLLER
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder

BEGIN_TIMEOUT_S = 25.0


class ControllerActivities(ActivityGroup):
    """The requests of a save to the Single Controller."""

    @activity.defn
    async def begin_checkpoint(self, request: save.BeginRequest) -> save.BeginResult:
        """Step 0: the controller agrees and reserves the folder, or gives its reason.

        Raises:
            ControllerLost: No controller of this job answers: restore it.
            OtherJob: This worker, or the controller of its cluster, serves another job.
            FolderError: The manifest could not be sealed: its key cannot be read here.
        """
        async with self._driving(request) as clock:
            await asyncio.to_thread(SnapshotFolder(self._config).require_key)
            try:
                answer = await SingleControllerClient.begin_checkpoint(
                    request.job_id, request.checkpoint_id, request.name, timeout_s=BEGIN_TIMEOUT_S
                )
            except ActorLost as error:
                if (refused := await asyncio.to_thread(self._starting)) is not None:
                    return refused
                raise ControllerLost(
                    "the job has no controller: `turnpoint run` starts it, or brings it back from "
                    "its newest snapshot; `turnpoint restore` does only the latter",
                    participant=SINGLE_CONTROLLER,
                ) from error
            return save.BeginResult(**answer.model_dump(), ms=clock.elapsed_ms())

    def _starting(self) -> save.BeginResult | None:
        """The refusal while a claimed incarnation has no origin yet: its start is on its way."""
        newest = incarnations.not_begun(self._config.job_folder)
        if newest is None:
            return None
        return save.BeginResult(
            agreed=False,
            refusal=RestoreNotFinished.code,
            reason=f"incarnation {newest} does not run yet: wait for its start or restore; if that "
            "has failed, restore the job with `turnpoint restore`",
            incarnation=newest,
        )

    @activity.defn
    async def close_admission(self, request: save.CheckpointRequest) -> save.CloseResult:
        """Step 1: no new rollout is sent, and every result owed is acknowledged."""
        async with self._driving(request) as clock:
            controller = SingleControllerClient(request.incarnation)
            acknowledged = await controller.close_admission(
                request.checkpoint_id, clock.timeout_s()
            )
            return save.CloseResult(acknowledged=acknowledged, ms=clock.elapsed_ms())

    @activity.defn
    async def cut_rl_state(self, request: save.FolderRequest) -> save.CutResult:
        """Step 3: RL's own files under the data-plane barrier, every server confirmed held."""
        async with self._driving(request) as clock:
            controller = SingleControllerClient(request.incarnation)
            answer = await controller.cut_rl_state(
                request.checkpoint_id, request.folder, clock.timeout_s()
            )
            return save.CutResult(**answer.model_dump(), ms=clock.elapsed_ms())
