"""The Ray actor `SingleController`: puts `rl.controller.controller` on one event loop.

Guarantees: `renew`, `status`
and `resume_checkpoint` have a concurrency group of their own, so no queue of other calls delays
them; they hop to the loop on which all state is touched. A call of another incarnation is refused.
Losing this actor ends the live job (`max_restarts=0`): its state is in memory, and the answer is a
restore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import ray

from gym.logs import configure_logging
from gym.protocol import StaleIncarnation, WrittenFile
from rl.controller.collaborators import Collaborators, DataPlaneHostClient, NemoGymClient
from rl.controller.controller import Controller, not_started
from rl.errors import ControllerLost
from rl.messages import (
    SINGLE_CONTROLLER,
    BeginAnswer,
    ContinuedRollout,
    ControllerStatus,
    CutAnswer,
    JobConfig,
    JoinedServer,
    StartAnswer,
    Workload,
)
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.one_job import refuse_other_job

T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
_CONTROL_CALLS = 64


def _control(method: MethodT) -> MethodT:
    """Run the method in the concurrency group that no queue of other calls delays."""
    return cast(MethodT, ray.method(concurrency_group="control")(method))


class SingleController:
    """The actor. Make it with `single_controller`.

    Args:
        config: The job's configuration.
        incarnation: The one it speaks for; calls of another are refused.
        servers: The Gym servers that joined it.
    """

    def __init__(self, config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> None:
        configure_logging(SINGLE_CONTROLLER)
        self._config = config
        self._incarnation = incarnation
        self._servers = servers
        self._controller: Controller | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attaching = asyncio.Lock()
        # It imports torch, for seconds: in this process, and not in each that starts the actor.
        from rl.data_plane.transfer_queue import DataPlane

        self._attach = DataPlane.attach

    async def begin_checkpoint(
        self, job_id: str, checkpoint_id: str, name: str | None
    ) -> BeginAnswer:
        """See `SaveCoordinator.begin`; the answer tells the incarnation.

        Raises:
            OtherJob: A worker of another job has joined this cluster.
        """
        refuse_other_job(job_id, self._config.job_id)
        return await self._started().saves.begin(checkpoint_id, name)

    async def close_admission(self, incarnation: int, checkpoint_id: str, timeout_s: float) -> int:
        """See `SaveCoordinator.close_admission`."""
        return await self._of(incarnation).saves.close_admission(checkpoint_id, timeout_s)

    async def cut_rl_state(
        self, incarnation: int, checkpoint_id: str, folder_name: str, timeout_s: float
    ) -> CutAnswer:
        """See `SaveCoordinator.cut`."""
        return await self._of(incarnation).saves.cut(checkpoint_id, folder_name, timeout_s)

    @_control
    async def renew(self, incarnation: int, checkpoint_id: str, lease_s: float) -> bool:
        """See `SaveCoordinator.renew`."""
        controller = self._of(incarnation)
        return await self._hop(lambda: controller.saves.renew(checkpoint_id, lease_s))

    @_control
    async def resume_checkpoint(
        self, incarnation: int, checkpoint_id: str, published: str | None
    ) -> float | None:
        """See `SaveCoordinator.resume`."""
        controller = self._of(incarnation)
        return await self._hop(lambda: controller.saves.resume(checkpoint_id, published))

    @_control
    async def status(self) -> ControllerStatus:
        """State of the job; always answered, and without an incarnation."""
        if self._controller is None:
            return not_started(self._config, self._incarnation)
        return await self._hop(self._controller.status)

    @_control
    async def servers(self, incarnation: int) -> list[JoinedServer]:
        """The servers that joined; also before the start (a NemoGym actor may come back then)."""
        self._require(incarnation)
        return self._servers

    async def start_fresh(self, incarnation: int, workload: Workload) -> None:
        """See `Controller.start_fresh`."""
        await (await self._attached(incarnation)).start_fresh(workload)

    async def start_restored(
        self, incarnation: int, restore_id: str, folder_abs: str, files: list[WrittenFile]
    ) -> StartAnswer:
        """See `RestoreCoordinator.start`."""
        controller = await self._attached(incarnation)
        return await controller.restore.start(restore_id, Path(folder_abs), files)

    async def discard_continuations(
        self, incarnation: int, restore_id: str
    ) -> list[ContinuedRollout]:
        """See `RestoreCoordinator.discard`."""
        return await self._of(incarnation).restore.discard(restore_id)

    async def start_pumps(self, incarnation: int) -> int:
        """See `Controller.start_pumps`."""
        return self._of(incarnation).start_pumps()

    # --- the shell ----------------------------------------------------------------------------

    async def _attached(self, incarnation: int) -> Controller:
        self._require(incarnation)
        async with self._attaching:
            if self._controller is None:
                collaborators = Collaborators(
                    data_plane=await self._attach(),
                    host=DataPlaneHostClient(incarnation),
                    gym=NemoGymClient(incarnation),
                    folder=SnapshotFolder(self._config),
                )
                self._loop = asyncio.get_running_loop()
                self._controller = Controller(
                    self._config, incarnation, self._servers, collaborators
                )
        return self._controller

    def _require(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            raise StaleIncarnation(
                f"this is incarnation {self._incarnation}", participant=SINGLE_CONTROLLER
            )

    def _started(self) -> Controller:
        if self._controller is None:
            raise ControllerLost("this controller was not started", participant=SINGLE_CONTROLLER)
        return self._controller

    def _of(self, incarnation: int) -> Controller:
        self._require(incarnation)
        return self._started()

    async def _hop(self, call: Callable[[], T]) -> T:
        """Run `call` on the loop that owns the state (a concurrency group has its own loop)."""

        async def on_loop() -> T:
            return call()

        if self._loop is None:
            raise ControllerLost("this controller was not started", participant=SINGLE_CONTROLLER)
        hop = asyncio.run_coroutine_threadsafe(on_loop(), self._loop)
        return await asyncio.wrap_future(hop)


def single_controller(config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> Any:
    """Start the detached actor (named; never restarted: a restarted one would know nothing)."""
    actor = ray.remote(concurrency_groups={"control": _CONTROL_CALLS})(SingleController)
    return actor.options(
        name=SINGLE_CONTROLLER, lifetime="detached", num_cpus=0, max_restarts=0
    ).remote(config, incarnation, servers)
