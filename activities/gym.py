"""Activities of the Gym servers, through the NemoGym actor; by HTTP where the actor is gone.

Guarantees: an activity that returns has reached every server, in the design's order of kinds;
each can run twice, even at once, and has the effect of once per checkpoint or restore id.
"""

from __future__ import annotations

import logging
import time

from temporalio import activity
from temporalio.client import Client

from activities.contract.restore import (
    DiscoverResult,
    RestoreCheckpointRequest,
    RestoreStep,
    ResumeRestoredRequest,
    ServersResult,
)
from activities.contract.save import (
    CheckpointRequest,
    CommitCheckpointResult,
    FolderRequest,
    PrepareCheckpointResult,
    ResumeCheckpointRequest,
    ResumeCheckpointResult,
)
from activities.controller import check_job
from activities.driving import driving
from activities.leases import renewal
from gym.client import GymClient
from gym.protocol import DeadlineExceeded, NotReady, WrittenFile
from rl.actors import call
from rl.errors import ActorLost
from rl.messages import NEMO_GYM, SINGLE_CONTROLLER, JobConfig, JoinedServer, ServerReport
from rl.nemo_gym.joining import discover_and_join
from rl.nemo_gym.save import resume_servers
from rl.snapshots.incarnations import record_origin

logger = logging.getLogger(__name__)

RESUME_LIMIT_S = 20.0
UNREACHABLE_S = 2.0
"""A server that stays silent so long counts as resumed in a save (design section 4)."""


class GymActivities:
    """What saves and restores ask of the Gym servers."""

    def __init__(self, client: Client, config: JobConfig, gym: GymClient) -> None:
        """Take what every call needs.

        Args:
            client: Temporal, for the proof that a try is still waited for.
            config: The job that this worker serves.
            gym: For capabilities, and for the abort when the actor is gone.
        """
        self._client = client
        self._config = config
        self._gym = gym

    @activity.defn
    async def prepare_checkpoint(self, request: CheckpointRequest) -> PrepareCheckpointResult:
        """Step 1: every rollout stands at a turn boundary, 0 calls in flight.

        Raises:
            DeadlineExceeded: Some server was not ready in time; its blockers are in the details.
        """
        async with driving(
            self._client, request.deadline, lease_s=request.lease_s, renew=renewal(request)
        ) as budget:
            try:
                answer = await call(
                    NEMO_GYM,
                    "prepare_checkpoint",
                    request.incarnation,
                    request.checkpoint_id,
                    budget.left_s(),
                    request.lease_s,
                )
            except NotReady as error:
                raise DeadlineExceeded(
                    error.message, participant=error.participant, details=error.details
                ) from error
            return PrepareCheckpointResult(
                servers=answer.servers, parked=answer.parked, ms=budget.elapsed_ms()
            )

    @activity.defn
    async def commit_checkpoint(self, request: FolderRequest) -> CommitCheckpointResult:
        """Step 2: each server's part is on disk, with its digests."""
        async with driving(
            self._client, request.deadline, lease_s=request.lease_s, renew=renewal(request)
        ) as budget:
            answer = await call(
                NEMO_GYM,
                "commit_checkpoint",
                request.incarnation,
                request.checkpoint_id,
                budget.left_s(),
                str(self._config.job_folder / request.folder),
            )
            return CommitCheckpointResult(
                servers=answer.servers,
                files=answer.files,
                continuations=answer.continuations,
                ms=budget.elapsed_ms(),
            )

    @activity.defn
    async def resume_checkpoint(self, request: ResumeCheckpointRequest) -> ResumeCheckpointResult:
        """Step 5 and the compensation: servers open, then the controller sends rollouts again.

        A save must never keep a live fleet paused: what cannot be reached is named and left to
        its lease.
        """
        check_job(self._config, request.job_id)
        async with driving(self._client, None) as budget:
            incarnation = request.incarnation or await self._incarnation()
            if incarnation is None:
                return ResumeCheckpointResult(
                    servers=[], pause_s=None, ms=0, note="the job has no controller: leases open it"
                )
            servers, note = await self._resume_servers(incarnation, request.checkpoint_id)
            try:
                pause_s = await call(
                    SINGLE_CONTROLLER,
                    "resume_checkpoint",
                    incarnation,
                    request.checkpoint_id,
                    request.published,
                    limit_s=RESUME_LIMIT_S,
                )
            except ActorLost as error:
                pause_s, note = None, str(error)
            return ResumeCheckpointResult(
                servers=servers, pause_s=pause_s, ms=budget.elapsed_ms(), note=note
            )

    async def _incarnation(self) -> int | None:
        try:
            status = await call(SINGLE_CONTROLLER, "status", limit_s=RESUME_LIMIT_S)
        except ActorLost:
            return None
        return int(status.incarnation)

    async def _resume_servers(
        self, incarnation: int, checkpoint_id: str
    ) -> tuple[list[ServerReport], str | None]:
        try:
            reports: list[ServerReport] = await call(
                NEMO_GYM,
                "resume_checkpoint",
                incarnation,
                checkpoint_id,
                UNREACHABLE_S,
                limit_s=RESUME_LIMIT_S,
            )
            return reports, None
        except (ActorLost, DeadlineExceeded) as lost:
            try:
                servers: list[JoinedServer] = await call(
                    SINGLE_CONTROLLER, "servers", incarnation, limit_s=RESUME_LIMIT_S
                )
            except ActorLost as error:
                return [], f"{lost}; {error}"
            reports = await resume_servers(
                self._gym, servers, incarnation, checkpoint_id, UNREACHABLE_S
            )
            logger.warning("servers resumed without NemoGym", extra={"code": lost.code})
            return reports, None

    @activity.defn
    async def discover_capabilities(self, request: RestoreStep) -> DiscoverResult:
        """Restore, step 1: every server is there, of the right kind, and has joined.

        Raises:
            ServersMissing: Some are not there within `restore_wait_s`; they are named.
            ServersNotAwaiting: Some still are what the old job left; they are named.
        """
        started = time.monotonic()
        check_job(self._config, request.job_id)
        async with driving(self._client, None):
            servers = await discover_and_join(
                self._gym,
                self._config,
                request.incarnation,
                self._config.restore_wait_s,
                awaiting=True,
            )
        return DiscoverResult(servers=servers, ms=(time.monotonic() - started) * 1000)

    @activity.defn
    async def restore_checkpoint(self, request: RestoreCheckpointRequest) -> ServersResult:
        """Restore, step 1: model, agents, resources have loaded their parts and stay closed."""
        async with driving(self._client, None) as budget:
            servers = await call(
                NEMO_GYM,
                "restore_checkpoint",
                request.incarnation,
                request.restore_id,
                request.source_checkpoint_id,
                str(self._config.job_folder / request.snapshot),
                _gym_files(request.files),
            )
            return ServersResult(servers=servers, ms=budget.elapsed_ms())

    @activity.defn
    async def resume_restored(self, request: ResumeRestoredRequest) -> ServersResult:
        """Restore, step 2: resources, model, agents open.

        The origin of the incarnation is on disk before the first resume is sent.
        """
        async with driving(self._client, None) as budget:
            record_origin(self._config.job_folder, request.incarnation, request.snapshot)
            servers = await call(
                NEMO_GYM, "resume_restored", request.incarnation, request.restore_id
            )
            return ServersResult(servers=servers, ms=budget.elapsed_ms())


def _gym_files(files: list[WrittenFile]) -> list[WrittenFile]:
    return [file for file in files if file.path.startswith("gym/")]
