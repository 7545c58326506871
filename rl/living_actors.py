"""The job's Ray actors that live now: their names, and their ends.

Guarantees: every step can be repeated. A kill ends the lives that it is given and never a later
one of the same name; it returns when the names are free again, so the next start does not meet an
actor that is going away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from gym.protocol import DeadlineExceeded
from rl.actors import attached
from rl.config import JobConfig
from rl.data_plane.names import CONTROLLER_ACTOR, CONTROLLER_NAMESPACE, STORAGE_ACTOR
from rl.messages import DATA_PLANE_HOST, GENERATION, NEMO_GYM, RAY_NAMESPACE, SINGLE_CONTROLLER

_GONE_TIMEOUT_S = 30.0
_POLL_S = 0.05
_OWN = (SINGLE_CONTROLLER, NEMO_GYM, GENERATION, DATA_PLANE_HOST)
"""In the order they are killed: an actor that sends work before those that it sends to."""
_TRANSFER_QUEUE = "TransferQueue"


@dataclass(frozen=True)
class LivingActor:
    """One life of a named actor of a job."""

    name: str
    namespace: str
    handle: Any
    """None: it is dying already, and only its name is still there."""


async def find_all() -> list[LivingActor]:
    """Every actor of a job that is there now, TransferQueue's included.

    Raises:
        RayUnreachable: There is no cluster.
    """
    await attached()
    return await asyncio.to_thread(_living)


async def kill(killed: list[LivingActor] | None = None) -> list[str]:
    """Kill actors of a job and wait until their names are free, or another life has taken them.

    Args:
        killed: Lives to end; by default all that are there now.

    Returns:
        The names of those that were there.

    Raises:
        DeadlineExceeded: A name was still taken after 30 s.
        RayUnreachable: There is no cluster.
    """
    if killed is None:
        killed = await find_all()
    for actor in killed:
        if actor.handle is not None:
            await asyncio.to_thread(ray.kill, actor.handle, no_restart=True)
    left: list[str] = []
    try:
        async with asyncio.timeout(_GONE_TIMEOUT_S):
            # Ray has no event for it.
            while left := await asyncio.to_thread(_left, killed):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DeadlineExceeded(
            "killed actors still have their names", details={"actors": left}
        ) from None
    return [actor.name for actor in killed]


async def names() -> list[str]:
    """Names of a job's actors that live or are being restarted, TransferQueue's included.

    Raises:
        RayUnreachable: There is no cluster.
    """
    await attached()
    return [name for name, _ in await asyncio.to_thread(_named)]


def data_plane_names(config: JobConfig) -> list[str]:
    """Names of the actors that hold the data plane: losing one of them ends the live job."""
    units = [STORAGE_ACTOR.format(number) for number in range(config.storage_units)]
    return [DATA_PLANE_HOST, CONTROLLER_ACTOR, *units]


async def ensure(name: str, create: Callable[[], Any]) -> None:
    """Create a named actor unless it is there; its first call tells its incarnation."""
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
