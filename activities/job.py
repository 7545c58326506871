"""Activities about the job as a whole: claim it, start its actors, let it go on, give up.

Guarantees: an incarnation is claimed before anything of the old one is touched, and each step
after the claim happens only while it is the newest (design section 5, step 0).
"""

from __future__ import annotations

import asyncio
import time

from temporalio import activity
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import JOB_ATTRIBUTE, WORKFLOW_TYPES
from activities.contract.restore import (
    ClaimRequest,
    ClaimResult,
    DiscardContinuationsResult,
    DropRestoredRequest,
    LoadDataPlaneResult,
    LoadRequest,
    RestoreStep,
    ServersResult,
    StartControllerResult,
    StartPumpsRequest,
    StartPumpsResult,
)
from activities.controller import check_job
from activities.driving import driving, prove
from activities.schedule import go_on, pause_for_restore
from gym.client import GymClient
from gym.protocol import DeadlineExceeded
from rl import job
from rl.actors import call
from rl.errors import JobAlive
from rl.messages import DATA_PLANE_HOST, SINGLE_CONTROLLER, JobConfig, JobPhase
from rl.nemo_gym.restore import reset_servers
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder

_JOB = SearchAttributeKey.for_keyword(JOB_ATTRIBUTE)


class JobActivities:
    """What a restore asks of the cluster."""

    def __init__(self, client: Client, config: JobConfig, gym: GymClient) -> None:
        """Take what every call needs.

        Args:
            client: Temporal, to end the old incarnation's workflows and pause the Schedule.
            config: The job that this worker serves.
            gym: To reset the servers when a restore gives up.
        """
        self._client = client
        self._config = config
        self._gym = gym

    @activity.defn
    async def claim_job(self, request: ClaimRequest) -> ClaimResult:
        """Restore, step 0: raise the incarnation, then clear what the old one left.

        With `replace` a live job's actors are killed after the claim. Its Gym servers are
        restarted by whoever owns their processes (the command line, for a local stack), while
        `discover_capabilities` waits for them.

        Raises:
            NoSnapshot, NotFound: There is nothing to restore from; nothing was touched.
            JobAlive: The job of the newest incarnation answers, and `replace` was not asked
                for; nothing was touched.
            OtherJob: This worker serves another job, or the cluster holds one; nothing was
                touched.
            Superseded: Somebody else claimed it first; nothing was touched.
        """
        started = time.monotonic()
        check_job(self._config, request.job_id)
        folder = self._config.job_folder
        async with driving(self._client, None):
            # A restore that cannot succeed must not cost the job that is there.
            await asyncio.to_thread(SnapshotFolder(self._config).candidates, request.snapshot)
            old = await job.actors()
            if incarnations.owned_by(folder, request.run_id) is None:
                newest = incarnations.newest(folder)
                await self._refuse_if_alive(request)
            else:
                newest = None
            incarnation = await asyncio.to_thread(
                incarnations.claim,
                folder,
                {"workflow_id": request.workflow_id, "run_id": request.run_id},
                after=newest,
            )
            await self._still_ours(incarnation)
            await job.kill_actors(old)
            await self._still_ours(incarnation)
            terminated = await self._terminate_others(request)
            await self._still_ours(incarnation)
            trashed = await asyncio.to_thread(SnapshotFolder(self._config).sweep)
            await self._still_ours(incarnation)
            running = await pause_for_restore(self._client, request.job_id, incarnation)
        return ClaimResult(
            incarnation=incarnation,
            schedule_was_running=running,
            restore_wait_s=self._config.restore_wait_s,
            terminated=terminated,
            trashed=trashed,
            ms=(time.monotonic() - started) * 1000,
        )

    async def _still_ours(self, incarnation: int) -> None:
        """Before a step that destroys: nobody is newer, and Temporal waits for this very try.

        A try that stood still while a later one restored the job must not end that job.
        """
        incarnations.demand_newest(self._config.job_folder, incarnation)
        await prove(self._client)

    async def _refuse_if_alive(self, request: ClaimRequest) -> None:
        try:
            status = await job.alive_here(self._config)
        except DeadlineExceeded:
            if not request.replace:
                raise
            return  # it is there and silent: what replaces it kills it
        # One that was started or restored and not set going is one that nobody drives any more
        # (design section 5): the next restore takes its place.
        if status is None or status.state is not JobPhase.RUNNING:
            return
        if request.replace:
            return
        raise JobAlive(
            f"incarnation {status.incarnation} is {status.state}: stop it with `turnpoint down`, "
            "or restore with `--replace`",
            participant=request.job_id,
            details={"incarnation": status.incarnation, "state": status.state},
        )

    async def _terminate_others(self, request: ClaimRequest) -> list[str]:
        """End every open workflow of the job but this one.

        A save that somebody has started from the UI may have any id, another job's pattern
        included: what the workflow itself says of its job counts first.
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
    async def load_data_plane(self, request: LoadRequest) -> LoadDataPlaneResult:
        """Restore, step 1: host, generation endpoint and NemoGym started, TransferQueue loaded."""
        async with driving(self._client, None) as budget:
            incarnations.demand_newest(self._config.job_folder, request.incarnation)
            await job.start_data_plane(self._config, request.incarnation, request.servers)
            rows = await call(
                DATA_PLANE_HOST,
                "load",
                request.incarnation,
                str(self._config.job_folder / request.snapshot),
                [file for file in request.files if file.path.startswith("data_plane/")],
            )
            return LoadDataPlaneResult(rows=rows, ms=budget.elapsed_ms())

    @activity.defn
    async def start_controller(self, request: LoadRequest) -> StartControllerResult:
        """Restore, step 2: RL's own state is loaded, each unfinished rollout has run n+1."""
        async with driving(self._client, None) as budget:
            incarnations.demand_newest(self._config.job_folder, request.incarnation)
            await job.start_single_controller(self._config, request.incarnation, request.servers)
            answer = await call(
                SINGLE_CONTROLLER,
                "start_restored",
                request.incarnation,
                request.restore_id,
                str(self._config.job_folder / request.snapshot),
                [file for file in request.files if file.path.startswith("rl/")],
            )
            return StartControllerResult(
                unfinished=answer.unfinished, finished=answer.finished, ms=budget.elapsed_ms()
            )

    @activity.defn
    async def discard_continuations(self, request: RestoreStep) -> DiscardContinuationsResult:
        """Restore, step 2: rollouts that cannot continue start over, and are reported."""
        async with driving(self._client, None) as budget:
            restarted = await call(
                SINGLE_CONTROLLER,
                "discard_continuations",
                request.incarnation,
                request.restore_id,
            )
            return DiscardContinuationsResult(restarted=restarted, ms=budget.elapsed_ms())

    @activity.defn
    async def start_pumps(self, request: StartPumpsRequest) -> StartPumpsResult:
        """Restore, step 2: unfinished rollouts are sent again, then the Schedule goes on."""
        async with driving(self._client, None) as budget:
            sent = await call(SINGLE_CONTROLLER, "start_pumps", request.incarnation)
            if request.schedule_was_running:
                await go_on(self._client, request.job_id, request.incarnation)
            return StartPumpsResult(sent_again=sent, ms=budget.elapsed_ms())

    @activity.defn
    async def drop_restored(self, request: DropRestoredRequest) -> ServersResult:
        """Leave nothing of a try: servers back to awaiting, the actors killed and waited for."""
        async with driving(self._client, None) as budget:
            incarnations.demand_newest(self._config.job_folder, request.incarnation)
            old = await job.actors()
            try:
                servers = await reset_servers(
                    self._gym, request.servers, request.incarnation, request.restore_id
                )
            finally:
                await prove(self._client)
                await job.kill_actors(old)
            return ServersResult(servers=servers, ms=budget.elapsed_ms())
