"""Ray for the in-process twin: named actors, their calls and their end, without processes.

`rl.job`, `rl.actors`, the Single Controller and what the activities do with them are the
product's. Arguments and answers are pickled, as Ray does; a caller that leaves ends no call.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from ray.exceptions import RayActorError

from gym.protocol import StaleIncarnation, WrittenFile
from rl import actors, job, living_actors
from rl.controller import actor as single_controller
from rl.controller.actor import SingleController
from rl.controller.controller import Controller
from rl.data_plane import transfer_queue
from rl.messages import RAY_NAMESPACE
from rl.nemo_gym.actor import NemoGym
from rl.nemo_gym.fleet import Fleet
from rl.nemo_gym.service import NemoGymService
from tests.twin.in_process.fake_data_plane import FakeDataPlane

T = TypeVar("T")
OnStep = Callable[[str], Awaitable[None]]
"""Awaited before and after each step that a crash may separate; gets the step's name."""


class FakeCluster:
    """The actors of one execution."""

    def __init__(self, on_step: OnStep) -> None:
        self.actors: dict[str, Any] = {}
        self._on_step = on_step

    async def call(self, name: str, actor: Any, method: str, arguments: bytes) -> Any:
        """Call a method of an actor.

        Raises:
            RayActorError: The actor was killed.
        """
        await self._on_step(f"{name}.{method} called")
        if self.actors.get(name) is not actor:
            raise RayActorError
        answer = await getattr(actor, method)(*pickle.loads(arguments))
        await self._on_step(f"{name}.{method} answered")
        return pickle.loads(pickle.dumps(answer))


class Actors(Protocol):
    """Knows the current execution and makes its actors."""

    @property
    def cluster(self) -> FakeCluster: ...

    @property
    def rows(self) -> FakeDataPlane: ...

    def make(self, what: str, *given: Any) -> None:
        """Make an actor as the function `what` of `rl.job` does."""


class _Handle:
    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._actor = cluster.actors[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and self._actor is other._actor

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, method: str) -> _Method:
        return _Method(partial(self._cluster.call, self._name, self._actor, method))


class _Method:
    def __init__(self, call: Callable[[bytes], Awaitable[Any]]) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> Awaitable[Any]:
        call = asyncio.ensure_future(self._call(pickle.dumps(arguments)))
        return asyncio.shield(call)


class _Ray:
    """Those parts of the module `ray` that find and end actors."""

    def __init__(self, job_actors: Actors) -> None:
        self._job = job_actors
        self.util = self

    def is_initialized(self) -> bool:
        return True

    def list_named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        return [{"name": name, "namespace": RAY_NAMESPACE} for name in self._job.cluster.actors]

    def get_actor(self, name: str, namespace: str) -> _Handle:
        if name not in self._job.cluster.actors:
            raise ValueError(f"no actor {name}")
        return _Handle(self._job.cluster, name)

    def kill(self, handle: _Handle, no_restart: bool) -> None:
        actors = self._job.cluster.actors
        if actors.get(handle._name) is handle._actor:  # not a newer actor of that name
            del actors[handle._name]


@contextmanager
def fake_ray(job_actors: Actors) -> Iterator[None]:
    """Have `rl` find and make the actors of `job_actors`."""

    class Attached:
        @staticmethod
        async def attach() -> FakeDataPlane:
            return job_actors.rows

    with pytest.MonkeyPatch.context() as patch:
        for module in (living_actors, actors):
            patch.setattr(module, "ray", _Ray(job_actors))
        for maker in ("data_plane_host", "generation_actor", "nemo_gym", "single_controller"):
            patch.setattr(job, maker, partial(job_actors.make, maker))
        patch.setattr(transfer_queue, "DataPlane", Attached)
        patch.setattr(single_controller, "configure_logging", lambda name: None)
        yield


class ControllerInProcess(SingleController):
    """The product's actor, open to the twin's checks."""

    @property
    def controller(self) -> Controller | None:
        """None: it was not started."""
        return self._running[0] if self._running else None


class NemoGymInProcess(NemoGym):
    """The product's actor without its thread and its client."""

    def __init__(self, fleet: Fleet, incarnation: int) -> None:
        self._incarnation = incarnation
        self._here = NemoGymService(fleet)

    async def _do(self, incarnation: int, work: Callable[[NemoGymService], Awaitable[T]]) -> T:
        _require_current(self._incarnation, incarnation)
        return await work(self._here)


class FakeDataPlaneHost:
    """Stands for the actor that owns TransferQueue."""

    def __init__(self, job_id: str, incarnation: int, rows: FakeDataPlane) -> None:
        self._job_id, self._incarnation, self._rows = job_id, incarnation, rows

    async def job_id(self) -> str:
        return self._job_id

    async def ping(self, incarnation: int) -> None:
        _require_current(self._incarnation, incarnation)

    async def load(self, incarnation: int, folder: str, files: list[WrittenFile]) -> int:
        _require_current(self._incarnation, incarnation)
        return await self._rows.load(Path(folder))

    async def save(self, incarnation: int, folder: str) -> list[WrittenFile]:
        _require_current(self._incarnation, incarnation)
        return await self._rows.save(Path(folder))


class FakeGenerationServer:
    """Stands for the generation endpoint, which serves from the network here."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    async def ready(self, incarnation: int) -> str:
        _require_current(self._incarnation, incarnation)
        return "http://generation/v1"


def _require_current(own: int, asked: int) -> None:
    if asked != own:
        raise StaleIncarnation(f"this is incarnation {own}")
