"""Activities about the job as a whole: claim it, start its actors and pumps, drop a failed try.

Guarantees: an incarnation is claimed before anything of the old one is touched, and each step
after the claim happens only while it is the newest (design section 5, step 0).
"""

from __future__ import annotations

import asyncio

from temporalio import activity
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import JOB_ATTRIBUTE, WORKFLOW_TYPES, restore
from activities.driving import prove
from activities.group import ActivityGroup
from activities.schedule import go_on, pause_for_restore
from gym.client import GymClient
from gym.protocol import DeadlineExceeded
from rl import job, living_actors
from rl.config import JobConfig
from rl.controller.client import SingleControllerClient
from rl.data_plane.client import DataPlaneHostClient
from rl.errors import JobAlive
from rl.messages import JobPhase
from rl.nemo_gym.restore import reset_servers
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder

_JOB = SearchAttributeKey.for_keyword(JOB_ATTRIBUTE)


class JobActivities(ActivityGroup):
    """The requests of a restore to the cluster.

    Args:
        client: As in `ActivityGroup`; also to end the old incarnation's workflows and pause the
            Schedule.
        config: As in `ActivityGroup`.
        gym: To reset the servers after a restore that has failed.
    """

    def __init__(self, client: Client, config: JobConfig, gym: GymClient) -> None:
        super().__init__(client, config)
        self._gym = gym

    @activity.defn
    async def claim_job(self, request: restore.ClaimRequest) -> restore.ClaimResult:
        """Restore, step 0: raise the incarnation, then clear what the old one left.

        With `replace` a live job's actors are killed after the claim. The owner of its Gym servers
        (the command line, for a local stack) restarts them while `discover_capabilities` waits.

        Raises:
            NoSnapshot, NotFound: There is nothing to restore from; nothing was touched.
            JobAlive: The job of the newest incarnation answers, and `replace` was not asked
                for; nothing was touched.
            OtherJob: This worker serves another job, or the cluster holds one; nothing was
                touched.
            Superseded: Another restore or start claimed it first; nothing was touched.
        """
        folder = self._config.job_folder
        async with self._driving(request) as clock:
            # A restore that cannot succeed must not cost the job that is there.
            await asyncio.to_thread(SnapshotFolder(self._config).candidates, request.snapshot)
            old = await living_actors.find_all()
            if incarnations.owned_by(folder, request.run_id) is None:
                newest = incarnations.newest(folder)
                await self._require_replaceable(request)
            else:
                newest = None
            incarnation = await asyncio.to_thread(
                incarnations.claim,
                folder,
                {"workflow_id": request.workflow_id, "run_id": request.run_id},
                after=newest,
            )
            await self._require_ours(incarnation)
            await living_actors.kill(old)
            await self._require_ours(incarnation)
            terminated = await self._terminate_others(request)
            await self._require_ours(incarnation)
            trashed = await asyncio.to_thread(SnapshotFolder(self._config).sweep)
            await self._require_ours(incarnation)
            running = await pause_for_restore(self._client, request.job_id, incarnation)
            return restore.ClaimResult(
                incarnation=incarnation,
                schedule_was_running=running,
                restore_wait_s=self._config.restore_wait_s,
                terminated=terminated,
                trashed=trashed,
                ms=clock.elapsed_ms(),
            )

    async def _require_ours(self, incarnation: int) -> None:
        """Check, before a step that destroys, that no later try has restored the job.

        Raises:
            Superseded: A newer incarnation was claimed.
            StaleCheckpoint: Temporal does not wait for this very try any more.
        """
        incarnations.require_newest(self._config.job_folder, incarnation)
        await prove(self._client)

    async def _require_replaceable(self, request: restore.ClaimRequest) -> None:
        try:
            status = await job.alive_here(self._config)
        except DeadlineExceeded:
            if not request.replace:
                raise
            return  # it is there and silent: the claim kills it
        # A job that was started or restored and never set going was abandoned (design section 5):
        # the next restore takes its place.
        if status is None or status.state is not JobPhase.RUNNING or request.replace:
            return
        raise JobAlive(
            f"incarnation {status.incarnation} is {status.state}: stop it with `turnpoint down`, "
            "or restore with `--replace`",
            participant=request.job_id,
            details={"incarnation": status.incarnation, "state": status.state},
        )

    async def _terminate_others(self, request: restore.ClaimRequest) -> list[str]:
        """End every open workflow of the job but this one.

        A save that was started from the UI may have any id, another job's pattern included: the
        job that the workflow itself names counts first.
        """
        terminated = []
        types = ", ".join(f'"{name}"' for name in WORKFLOW_TYPES)
        query = (
            f'(WorkflowId STARTS_WITH "{request.job_id}/" OR {JOB_ATTRIBUTE} = "{request.job_id}")'
            f' AND WorkflowType IN ({types}) AND ExecutionStatus = "Running"'
        )
        async for found in self._client.list_workflows(query):
            job_id = found.typed_search_attributes.get(_JOB)
            if found.run_id == request.run_id or job_id not in (None, request.job_id):
                continue
            handle = self._client.get_workflow_handle(found.id, run_id=found.run_id)
            try:
                await handle.terminate(reason=f"superseded by {request.workflow_id}")
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:  # it has ended by itself meanwhile
                    raise
                continue
            terminated.append(found.id)
        return terminated

    @activity.defn
    async def load_data_plane(self, request: restore.LoadRequest) -> restore.LoadResult:
        """Restore, step 1: host, generation endpoint and NemoGym started, TransferQueue loaded."""
        async with self._driving(request) as clock:
            incarnations.require_newest(self._config.job_folder, request.incarnation)
            await job.start_data_plane(self._config, request.incarnation, request.servers)
            rows = await DataPlaneHostClient(request.incarnation).load(
                str(self._config.job_folder / request.snapshot),
                [file for file in request.files if file.path.startswith("data_plane/")],
            )
            return restore.LoadResult(rows=rows, ms=clock.elapsed_ms())

    @activity.defn
    async def start_controller(self, request: restore.LoadRequest) -> restore.StartResult:
        """Restore, step 2: RL's own state is loaded, each unfinished rollout has run n+1."""
        async with self._driving(request) as clock:
            incarnations.require_newest(self._config.job_folder, request.incarnation)
            await job.start_single_controller(self._config, request.incarnation, request.servers)
            answer = await SingleControllerClient(request.incarnation).start_restored(
                request.restore_id,
                str(self._config.job_folder / request.snapshot),
                [file for file in request.files if file.path.startswith("rl/")],
            )
            return restore.StartResult(**dict(answer), ms=clock.elapsed_ms())

    @activity.defn
    async def discard_continuations(self, request: restore.RestoreStep) -> restore.DiscardResult:
        """Restore, step 2: rollouts that cannot continue start over, and are reported."""
        async with self._driving(request) as clock:
            controller = SingleControllerClient(request.incarnation)
            restarted = await controller.discard_continuations(request.restore_id)
            return restore.DiscardResult(restarted=restarted, ms=clock.elapsed_ms())

    @activity.defn
    async def start_pumps(self, request: restore.PumpsRequest) -> restore.PumpsResult:
        """Restore, step 2: unfinished rollouts are sent again, then the Schedule goes on."""
        async with self._driving(request) as clock:
            sent = await SingleControllerClient(request.incarnation).start_pumps()
            if request.schedule_was_running:
                await go_on(self._client, request.job_id, request.incarnation)
            return restore.PumpsResult(sent_again=sent, ms=clock.elapsed_ms())

    @activity.defn
    async def drop_restored(self, request: restore.DropRequest) -> restore.ServersResult:
        """Leave nothing of a try: servers back to awaiting, the actors killed and waited for."""
        async with self._driving(request) as clock:
            incarnations.require_newest(self._config.job_folder, request.incarnation)
            old = await living_actors.find_all()
            try:
                servers = await reset_servers(
                    self._gym, request.servers, request.incarnation, request.restore_id
                )
            finally:
                await prove(self._client)
                await living_actors.kill(old)
            return restore.ServersResult(servers=servers, ms=clock.elapsed_ms())
