"""Activities of the Gym servers, through the NemoGym actor; by HTTP where the actor is gone.

Guarantees: an activity that returns has reached every server, in the design's order of kinds;
each can run twice, even at once, and has the effect of once per checkpoint or restore id.
"""

from __future__ import annotations

import logging

from temporalio import activity
from temporalio.client import Client

from activities.contract import restore, save
from activities.group import ActivityGroup
from gym.client import GymClient
from gym.protocol import DeadlineExceeded, NotReady
from rl.config import JobConfig
from rl.controller.client import SingleControllerClient
from rl.errors import ActorLost
from rl.messages import ServerReport
from rl.nemo_gym.client import NemoGymClient
from rl.nemo_gym.joining import discover_and_join
from rl.nemo_gym.save import resume_servers
from rl.snapshots.incarnations import record_origin

logger = logging.getLogger(__name__)

RESUME_TIMEOUT_S = 20.0
UNREACHABLE_S = 2.0
"""A server that stays silent so long counts as resumed in a save (design section 4)."""


class GymActivities(ActivityGroup):
    """The requests of saves and restores to the Gym servers.

    Args:
        client: As in `ActivityGroup`.
        config: As in `ActivityGroup`.
        gym: For capabilities, and for the abort when the actor is gone.
    """

    def __init__(self, client: Client, config: JobConfig, gym: GymClient) -> None:
        super().__init__(client, config)
        self._gym = gym

    @activity.defn
    async def prepare_checkpoint(self, request: save.CheckpointRequest) -> save.PrepareResult:
        """Step 1: every rollout stands at a turn boundary, 0 calls in flight.

        Raises:
            DeadlineExceeded: A server was not ready in time; its blockers are in the details.
        """
        async with self._driving(request) as clock:
            try:
                answer = await NemoGymClient(request.incarnation).prepare_checkpoint(
                    request.checkpoint_id, clock.timeout_s(), request.lease_s
                )
            except NotReady as error:
                raise DeadlineExceeded(
                    error.message, participant=error.participant, details=error.details
                ) from error
            return save.PrepareResult(**dict(answer), ms=clock.elapsed_ms())

    @activity.defn
    async def commit_checkpoint(self, request: save.FolderRequest) -> save.CommitResult:
        """Step 2: each server's part is on disk, with its digests."""
        async with self._driving(request) as clock:
            folder = str(self._config.job_folder / request.folder)
            answer = await NemoGymClient(request.incarnation).commit_checkpoint(
                request.checkpoint_id, clock.timeout_s(), folder
            )
            return save.CommitResult(**dict(answer), ms=clock.elapsed_ms())

    @activity.defn
    async def resume_checkpoint(self, request: save.ResumeRequest) -> save.ResumeResult:
        """Step 5 and the compensation: servers open, then the controller sends rollouts again.

        A save must never keep a live fleet paused: a participant that cannot be reached is named
        in the note and left to its lease.
        """
        async with self._driving(request) as clock:
            incarnation = request.incarnation or await self._incarnation()
            if incarnation is None:
                return save.ResumeResult(
                    servers=[], pause_s=None, note="the job has no controller: leases open it"
                )
            servers, note = await self._resume_servers(incarnation, request.checkpoint_id)
            try:
                pause_s = await SingleControllerClient(incarnation).resume_checkpoint(
                    request.checkpoint_id, request.published, timeout_s=RESUME_TIMEOUT_S
                )
            except ActorLost as error:
                pause_s, note = None, str(error)
            return save.ResumeResult(
                servers=servers, pause_s=pause_s, ms=clock.elapsed_ms(), note=note
            )

    async def _incarnation(self) -> int | None:
        try:
            status = await SingleControllerClient.status(timeout_s=RESUME_TIMEOUT_S)
        except ActorLost:
            return None
        return status.incarnation

    async def _resume_servers(
        self, incarnation: int, checkpoint_id: str
    ) -> tuple[list[ServerReport], str | None]:
        try:
            reports = await NemoGymClient(incarnation).resume_checkpoint(
                checkpoint_id, UNREACHABLE_S, timeout_s=RESUME_TIMEOUT_S
            )
            return reports, None
        except (ActorLost, DeadlineExceeded) as lost:
            try:
                servers = await SingleControllerClient(incarnation).servers(
                    timeout_s=RESUME_TIMEOUT_S
                )
            except ActorLost as error:
                return [], f"{lost}; {error}"
            reports = await resume_servers(
                self._gym, servers, incarnation, checkpoint_id, UNREACHABLE_S
            )
            logger.warning("servers resumed without NemoGym", extra={"code": lost.code})
            return reports, None

    @activity.defn
    async def discover_capabilities(self, request: restore.RestoreStep) -> restore.DiscoverResult:
        """Restore, step 1: every server is there, of the right kind, and has joined.

        Raises:
            ServersMissing: Some are not there within `restore_wait_s`; they are named.
            ServersNotAwaiting: Some still hold the state of the old job; they are named.
        """
        async with self._driving(request) as clock:
            servers = await discover_and_join(
                self._gym,
                self._config,
                request.incarnation,
                self._config.restore_wait_s,
                awaiting=True,
            )
            return restore.DiscoverResult(servers=servers, ms=clock.elapsed_ms())

    @activity.defn
    async def restore_checkpoint(self, request: restore.PartsRequest) -> restore.ServersResult:
        """Restore, step 1: model, agents, resources have loaded their parts and stay closed."""
        async with self._driving(request) as clock:
            servers = await NemoGymClient(request.incarnation).restore_checkpoint(
                request.restore_id,
                request.source_checkpoint_id,
                str(self._config.job_folder / request.snapshot),
                [file for file in request.files if file.path.startswith("gym/")],
            )
            return restore.ServersResult(servers=servers, ms=clock.elapsed_ms())

    @activity.defn
    async def resume_restored(self, request: restore.OpenRequest) -> restore.ServersResult:
        """Restore, step 2: resources, model, agents open.

        The origin of the incarnation is on disk before the first resume is sent.
        """
        async with self._driving(request) as clock:
            record_origin(self._config.job_folder, request.incarnation, request.snapshot)
            servers = await NemoGymClient(request.incarnation).resume_restored(request.restore_id)
            return restore.ServersResult(servers=servers, ms=clock.elapsed_ms())
