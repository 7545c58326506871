"""Starting and ending the job's Ray actors, from a driver: the CLI and the restore's activities.

Guarantees: every step can be repeated; an actor of another incarnation is never taken for this
one's. `kill_actors` returns only when the names are free again, so the next start does not meet
an actor that is going away. One job per Ray cluster: TransferQueue's actor names are fixed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import ray

from gym.client import GymClient
from gym.protocol import DeadlineExceeded, StaleIncarnation
from rl.actors import attached
from rl.config import JobConfig, Workload
from rl.controller.actor import single_controller
from rl.controller.client import SingleControllerClient
from rl.data_plane.client import DataPlaneHostClient
from rl.data_plane.host import data_plane_host
from rl.data_plane.names import CONTROLLER_NAMESPACE, STORAGE_ACTOR
from rl.errors import ActorLost, JobAlive
from rl.generation.actor import generation_actor
from rl.generation.client import GenerationServerClient
from rl.messages import (
    DATA_PLANE_HOST,
    GENERATION,
    NEMO_GYM,
    RAY_NAMESPACE,
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

_START_LIMIT_S = 120.0
"""TransferQueue's actors import torch: 6 to 15 s on two cores (reference/runtime.md)."""
_STATUS_LIMIT_S = 30.0
"""An actor that is still being created answers once its process is up: seconds, or more on a busy
machine. One that was killed is told by Ray at once."""
_WHOSE_LIMIT_S = 3.0
"""A host that is still importing torch answers later; then its controller says whose it is."""
_GONE_LIMIT_S = 30.0
_POLL_S = 0.05
_OWN = (SINGLE_CONTROLLER, NEMO_GYM, GENERATION, DATA_PLANE_HOST)
"""In the order they are killed: senders of work first."""
_TRANSFER_QUEUE = "TransferQueue"


async def alive(config: JobConfig, limit_s: float = _STATUS_LIMIT_S) -> ControllerStatus | None:
    """Status of the controller that lives in this cluster, of whatever job; None: there is none.

    Args:
        config: The job's configuration.
        limit_s: Seconds to wait for its answer.

    Raises:
        RayUnreachable: There is no cluster.
        DeadlineExceeded: A controller is there and does not answer: who replaces it kills it.
    """
    try:
        return await SingleControllerClient.status(timeout_s=limit_s)
    except ActorLost:
        return None


async def alive_here(config: JobConfig) -> ControllerStatus | None:
    """Status of this job's controller; None: there is none, and nothing of another job either.

    Raises:
        OtherJob: The cluster holds another job, whatever state that is in: its rows are in it.
        RayUnreachable: There is no cluster.
        DeadlineExceeded: A controller is there and does not answer: who replaces it kills it.
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
    # One that does not answer, or is just dying, says nothing: the controller is asked next.
    with contextlib.suppress(ActorLost, DeadlineExceeded):
        return await DataPlaneHostClient.job_id(timeout_s=_WHOSE_LIMIT_S)
    return None


def data_plane_actors(config: JobConfig) -> list[str]:
    """Names of the actors that hold the data plane: losing one of them ends the live job."""
    units = [STORAGE_ACTOR.format(number) for number in range(config.storage_units)]
    return [DATA_PLANE_HOST, f"{_TRANSFER_QUEUE}Controller", *units]


async def named_actors() -> list[str]:
    """Names of the job's actors that live or are being restarted, TransferQueue's among them.

    Raises:
        RayUnreachable: There is no cluster.
    """
    await attached()
    return [name for name, _ in await asyncio.to_thread(_named)]


async def start_data_plane(
    config: JobConfig, incarnation: int, servers: list[JoinedServer]
) -> None:
    """Start TransferQueue's host, the generation endpoint and NemoGym, each checked for ready.

    A restore loads TransferQueue right after this, before anything is put in it.

    A restore that this incarnation has superseded may have passed its own check just before the
    claim, and have started its actors after the claim had looked who is there: those end here.

    Raises:
        Superseded: An actor of another incarnation is there, and this one is not the newest.
        DataPlaneLost: TransferQueue cannot run here.
        DeadlineExceeded: An actor was not ready in time.
    """
    await attached()
    try:
        await _start_data_plane(config, incarnation, servers)
    except StaleIncarnation:
        incarnations.require_newest(config.job_folder, incarnation)
        await kill_actors()
        await _start_data_plane(config, incarnation, servers)


async def _start_data_plane(
    config: JobConfig, incarnation: int, servers: list[JoinedServer]
) -> None:
    # Each imports torch or Ray for seconds: they start together, and wait for TransferQueue.
    await _ensure(DATA_PLANE_HOST, lambda: data_plane_host(config, incarnation))
    await _ensure(GENERATION, lambda: generation_actor(config, incarnation))
    await _ensure(NEMO_GYM, lambda: nemo_gym(config, incarnation, servers))
    await asyncio.gather(
        DataPlaneHostClient(incarnation).ping(timeout_s=_START_LIMIT_S),
        GenerationServerClient(incarnation).ready(timeout_s=_START_LIMIT_S),
        NemoGymClient(incarnation).status(timeout_s=_START_LIMIT_S),
    )


async def start_stateless(config: JobConfig, incarnation: int) -> None:
    """Start the generation endpoint and NemoGym again under a live job, if they are not there.

    Ray restarts them by itself when their processes die, not when the actors were killed.

    Raises:
        ActorLost: The job's controller is gone: it is restored, not mended.
        StaleIncarnation: The controller is of another incarnation.
        DeadlineExceeded: An actor was not ready in time.
    """
    await SingleControllerClient(incarnation).servers(timeout_s=_STATUS_LIMIT_S)
    await _ensure(GENERATION, lambda: generation_actor(config, incarnation))
    await _ensure(NEMO_GYM, lambda: nemo_gym(config, incarnation, None))
    await asyncio.gather(
        GenerationServerClient(incarnation).ready(timeout_s=_START_LIMIT_S),
        NemoGymClient(incarnation).status(timeout_s=_START_LIMIT_S),
    )


async def start_single_controller(
    config: JobConfig, incarnation: int, servers: list[JoinedServer]
) -> None:
    """Start the controller; it refuses everything until it is started, fresh or restored.

    The controller of an incarnation that this one has superseded is killed first.

    Raises:
        Superseded: The controller of another incarnation is there, and this one is not the newest.
        DeadlineExceeded: It was not ready in time.
    """
    await attached()
    try:
        await _start_single_controller(config, incarnation, servers)
    except StaleIncarnation:
        incarnations.require_newest(config.job_folder, incarnation)
        await kill_actors([actor for actor in await actors() if actor.name == SINGLE_CONTROLLER])
        await _start_single_controller(config, incarnation, servers)


async def _start_single_controller(
    config: JobConfig, incarnation: int, servers: list[JoinedServer]
) -> None:
    await _ensure(SINGLE_CONTROLLER, lambda: single_controller(config, incarnation, servers))
    await SingleControllerClient(incarnation).servers(timeout_s=_START_LIMIT_S)


@dataclass(frozen=True)
class LivingActor:
    """One life of a named actor of a job: killing it never ends a later one of the same name."""

    name: str
    namespace: str
    handle: Any
    """None: it is dying already, and only its name is still there."""


async def actors() -> list[LivingActor]:
    """Every actor of a job that is there now, TransferQueue's included.

    Raises:
        RayUnreachable: There is no cluster.
    """
    await attached()
    return await asyncio.to_thread(_living)


async def kill_actors(killed: list[LivingActor] | None = None) -> list[str]:
    """Kill actors of a job and wait until their names are free, or another life has taken them.

    Args:
        killed: Whom; by default everybody who is there now.

    Returns:
        The names of those that were there.

    Raises:
        DeadlineExceeded: A name was still taken after 30 s.
        RayUnreachable: There is no cluster.
    """
    if killed is None:
        killed = await actors()
    for actor in killed:
        if actor.handle is not None:
            await asyncio.to_thread(ray.kill, actor.handle, no_restart=True)
    left: list[str] = []
    try:
        async with asyncio.timeout(_GONE_LIMIT_S):
            # Ray has no event for it.
            while left := await asyncio.to_thread(_left, killed):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DeadlineExceeded(
            "killed actors still have their names", details={"actors": left}
        ) from None
    return [actor.name for actor in killed]


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
        found = None  # it is there and silent: `kill_actors` ends it
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
    old = await actors()
    incarnation = await asyncio.to_thread(incarnations.claim, folder, owner, after=newest)
    await asyncio.to_thread(incarnations.require_newest, folder, incarnation)
    await kill_actors(old)
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


async def _ensure(name: str, create: Callable[[], Any]) -> None:
    """Create a named actor unless it is there; its first call tells whose it is."""
    if name not in {found for found, _ in await asyncio.to_thread(_named)}:
        # ValueError: a repeat of this activity on another worker was faster.
        with contextlib.suppress(ValueError):
            await asyncio.to_thread(create)


def _named() -> list[tuple[str, str]]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    ours = [(actor["name"], actor["namespace"]) for actor in actors if _is_ours(actor)]
    order = {name: place for place, name in enumerate(_OWN)}
    return sorted(ours, key=lambda actor: order.get(actor[0], len(_OWN)))


def _is_ours(actor: dict[str, str]) -> bool:
    if actor["name"].startswith(_TRANSFER_QUEUE):
        return actor["namespace"] in (RAY_NAMESPACE, CONTROLLER_NAMESPACE)
    return actor["namespace"] == RAY_NAMESPACE and actor["name"] in _OWN


def _living() -> list[LivingActor]:
    # All handles at once: with the last of a driver's actors Ray forgets their classes, and then
    # even a handle of one that is just dying cannot be made.
    return [LivingActor(*named, _handle(*named)) for named in _named()]


def _left(killed: list[LivingActor]) -> list[str]:
    """Names that killed actors still have."""
    now = {(actor.name, actor.namespace): actor for actor in _living()}
    found = [(actor, now.get((actor.name, actor.namespace))) for actor in killed]
    return [
        actor.name
        for actor, there in found
        if there is not None and (there.handle is None or there.handle == actor.handle)
    ]


def _handle(name: str, namespace: str) -> Any:
    """Handle of an actor that can still be killed; None for one that is dying already."""
    # ValueError: it has died since it was listed. AssertionError: Ray has forgotten its class,
    # which it does when the driver that made it and all its actors are gone.
    with contextlib.suppress(ValueError, AssertionError):
        return ray.get_actor(name, namespace=namespace)
    return None
