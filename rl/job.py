"""Starting the job's Ray actors, from a driver: the CLI and the restore's activities.

Guarantees: every step can be repeated; an actor of another incarnation is never taken for this
one's. One job per Ray cluster: TransferQueue's actor names are fixed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from gym.client import GymClient
from gym.protocol import DeadlineExceeded, StaleIncarnation
from rl import living_actors
from rl.actors import attached
from rl.config import JobConfig, Workload
from rl.controller.actor import single_controller
from rl.controller.client import SingleControllerClient
from rl.data_plane.client import DataPlaneHostClient
from rl.data_plane.host import data_plane_host
from rl.errors import ActorLost, JobAlive
from rl.generation.actor import generation_actor
from rl.generation.client import GenerationServerClient
from rl.messages import (
    DATA_PLANE_HOST,
    GENERATION,
    NEMO_GYM,
    SINGLE_CONTROLLER,
    ControllerStatus,
    JobPhase,
    JoinedServer,
)
from rl.nemo_gym.actor import nemo_gym
from rl.nemo_gym.client import NemoGymClient
from rl.nemo_gym.joining import discover_and_join
from rl.records.dataset import read_dataset
from rl.snapshots import incarnations
from rl.snapshots.one_job import blocks_start, require_no_other_job

_START_TIMEOUT_S = 120.0
"""TransferQueue's actors import torch: 6 to 15 s on two cores (measured)."""
_STATUS_TIMEOUT_S = 30.0
"""An actor that is still being created answers once its process is up: seconds, or more on a busy
machine. For one that was killed Ray answers at once."""
_JOB_ID_TIMEOUT_S = 3.0
"""A host that is still importing torch answers later: its controller tells the job then."""


async def alive(config: JobConfig, timeout_s: float = _STATUS_TIMEOUT_S) -> ControllerStatus | None:
    """Status of the controller that lives in this cluster, of any job; None: there is none.

    Args:
        config: The job's configuration.
        timeout_s: Seconds to wait for its answer.

    Raises:
        RayUnreachable: There is no cluster.
        DeadlineExceeded: A controller is there and does not answer: a replacement kills it.
    """
    try:
        return await SingleControllerClient.status(timeout_s=timeout_s)
    except ActorLost:
        return None


async def alive_here(config: JobConfig) -> ControllerStatus | None:
    """Status of this job's controller; None: there is none, and nothing of another job either.

    Raises:
        OtherJob: The cluster holds another job, whatever state that is in: its rows are in it.
        RayUnreachable: There is no cluster.
        DeadlineExceeded: A controller is there and does not answer: a replacement kills it.
    """
    require_no_other_job(config.job_id, await data_plane_job())
    status = await alive(config)
    require_no_other_job(config.job_id, status.job_id if status is not None else None)
    return status


async def data_plane_job() -> str | None:
    """The job whose data plane lives in this cluster, with or without its controller.

    Raises:
        RayUnreachable: There is no cluster.
    """
    # A host that does not answer, or is just dying, is no answer: the controller is asked next.
    with contextlib.suppress(ActorLost, DeadlineExceeded):
        return await DataPlaneHostClient.job_id(timeout_s=_JOB_ID_TIMEOUT_S)
    return None


async def start_data_plane(
    config: JobConfig, incarnation: int, servers: list[JoinedServer]
) -> None:
    """Start TransferQueue's host, the generation endpoint and NemoGym, each checked for ready.

    A restore loads TransferQueue right after this, before anything is put in it. Actors of an
    incarnation that this one has superseded are ended first: its restore may have passed its own
    check just before the claim, and have started them after the claim looked for actors.

    Raises:
        Superseded: An actor of another incarnation is there, and this one is not the newest.
        DataPlaneLost: TransferQueue cannot run here.
        DeadlineExceeded: An actor was not ready in time.
    """

    async def start() -> None:
        # Each imports torch or Ray for seconds: they start together, and wait for TransferQueue.
        await living_actors.ensure(DATA_PLANE_HOST, lambda: data_plane_host(config, incarnation))
        await _ensure_stateless(config, incarnation, servers)
        await asyncio.gather(
            DataPlaneHostClient(incarnation).ping(timeout_s=_START_TIMEOUT_S),
            _stateless_ready(incarnation),
        )

    await _start(config, incarnation, start)


async def start_stateless(config: JobConfig, incarnation: int) -> None:
    """Start the generation endpoint and NemoGym again under a live job, if they are not there.

    Ray does so by itself when their processes die; not when the actors were killed.

    Raises:
        ActorLost: The job's controller is gone: the answer is a restore.
        StaleIncarnation: The controller is of another incarnation.
        DeadlineExceeded: An actor was not ready in time.
    """
    await SingleControllerClient(incarnation).servers(timeout_s=_STATUS_TIMEOUT_S)
    await _ensure_stateless(config, incarnation, None)
    await _stateless_ready(incarnation)


async def _ensure_stateless(
    config: JobConfig, incarnation: int, servers: list[JoinedServer] | None
) -> None:
    await living_actors.ensure(GENERATION, lambda: generation_actor(config, incarnation))
    await living_actors.ensure(NEMO_GYM, lambda: nemo_gym(config, incarnation, servers))


async def _stateless_ready(incarnation: int) -> None:
    await asyncio.gather(
        GenerationServerClient(incarnation).ready(timeout_s=_START_TIMEOUT_S),
        NemoGymClient(incarnation).status(timeout_s=_START_TIMEOUT_S),
    )


async def start_single_controller(
    config: JobConfig, incarnation: int, servers: list[JoinedServer]
) -> None:
    """Start the controller; it refuses every call until it is started, fresh or restored.

    The controller of an incarnation that this one has superseded is killed first.

    Raises:
        Superseded: The controller of another incarnation is there, and this one is not the newest.
        DeadlineExceeded: It was not ready in time.
    """

    async def start() -> None:
        await living_actors.ensure(
            SINGLE_CONTROLLER, lambda: single_controller(config, incarnation, servers)
        )
        await SingleControllerClient(incarnation).servers(timeout_s=_START_TIMEOUT_S)

    await _start(config, incarnation, start, ended=SINGLE_CONTROLLER)


async def _start(
    config: JobConfig,
    incarnation: int,
    start: Callable[[], Awaitable[None]],
    ended: str | None = None,
) -> None:
    """Start actors; those of a superseded incarnation end first, all or the one named `ended`."""
    await attached()
    try:
        await start()
    except StaleIncarnation:
        incarnations.require_newest(config.job_folder, incarnation)
        found = await living_actors.find_all()
        await living_actors.kill([actor for actor in found if ended in (None, actor.name)])
        await start()


async def _nothing(incarnation: int) -> None:
    """The fleet is ready as it is."""


async def start_fresh(
    config: JobConfig,
    workload: Workload,
    owner: dict[str, Any],
    client: GymClient,
    *,
    replace: bool = False,
    on_claimed: Callable[[int], Awaitable[None]] = _nothing,
) -> int:
    """Start the job at its first prompt, as a line without a parent.

    A start that has stood still while a newer incarnation was brought up ends nothing of it: the
    actors that are killed are those that were there before the claim, and each step that touches
    processes of another start asks first whether this one is still the newest.

    Args:
        config: The job's configuration.
        workload: What it rolls out; the dataset is validated before anything is touched.
        owner: Ids of the caller, `run_id` among them; a repeat is recognised by it.
        client: HTTP client with the control token.
        replace: End a life of this job that still answers; only after the claim.
        on_claimed: Awaited with the incarnation once that is claimed: brings the Gym servers into
            the phase in which they join a job that starts (closed).

    Returns:
        The new incarnation.

    Raises:
        OtherJob: The cluster holds another job; nothing was touched.
        JobAlive: This job lives in it, or is being restored.
        DatasetInvalid: `file:line` of a row that does not parse, or is for an agent that the
            job has not.
        Superseded: Another command has started or restored the job meanwhile.
        ServersMissing, ServerUnfit: The fleet is not what the job needs.
    """
    dataset = await asyncio.to_thread(read_dataset, workload.dataset)
    folder = config.job_folder
    newest = await asyncio.to_thread(incarnations.newest, folder)
    try:
        found = await alive_here(config)
    except DeadlineExceeded:
        if not replace:
            raise
        found = None  # it is there and silent: it is killed below
    mine = await asyncio.to_thread(incarnations.owned_by, folder, str(owner["run_id"]))
    if found is not None and found.incarnation == mine:
        if found.state is not JobPhase.STARTING:
            return found.incarnation
    elif found is not None and blocks_start(folder, found) and not replace:
        raise JobAlive(
            f"job {found.job_id} (incarnation {found.incarnation}) is {found.state} here",
            participant=SINGLE_CONTROLLER,
            details={"job_id": found.job_id, "incarnation": found.incarnation},
        )
    dataset.require_agents([server.name for server in config.servers if server.kind == "agent"])
    old = await living_actors.find_all()
    incarnation = await asyncio.to_thread(incarnations.claim, folder, owner, after=newest)
    await asyncio.to_thread(incarnations.require_newest, folder, incarnation)
    await living_actors.kill(old)
    await asyncio.to_thread(incarnations.require_newest, folder, incarnation)
    await on_claimed(incarnation)
    await asyncio.to_thread(incarnations.require_newest, folder, incarnation)
    servers = await discover_and_join(client, config, incarnation, config.restore_wait_s)
    await asyncio.gather(
        start_data_plane(config, incarnation, servers),
        start_single_controller(config, incarnation, servers),
    )
    await SingleControllerClient(incarnation).start_fresh(workload)
    await asyncio.to_thread(incarnations.record_origin, folder, incarnation, None)
    await SingleControllerClient(incarnation).start_pumps()
    return incarnation
