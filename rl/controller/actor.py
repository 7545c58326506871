"""The Ray actor `SingleController`: puts `rl.controller.controller` on one event loop.

Guarantees: `renew`, `status` and `resume_checkpoint` have a concurrency group of their own, so no
queue of other calls delays them; they do their work on the loop on which all state is touched. A
call of another incarnation is refused. Losing this actor ends the live job (`max_restarts=0`): its
state is in memory, and the answer is a restore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import ray

from gym.logs import configure_logging
from gym.protocol import WrittenFile
from rl.actor_methods import CONTROL_GROUPS, control, require_incarnation
from rl.config import JobConfig, Workload
from rl.controller.collaborators import Collaborators
from rl.controller.controller import Controller, status_of
from rl.controller.job_state import JobState
from rl.data_plane.client import DataPlaneHostClient
from rl.errors import ControllerLost
from rl.messages import (
    SINGLE_CONTROLLER,
    BeginAnswer,
    ContinuedRollout,
    ControllerStatus,
    CutAnswer,
    JoinedServer,
    StartAnswer,
)
from rl.nemo_gym.client import NemoGymClient
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.one_job import require_no_other_job

T = TypeVar("T")


class SingleController:
    """The actor. Make it with `single_controller`.

    Args:
        config: The job's configuration.
        incarnation: The one it speaks for; calls of another are refused.
        servers: The Gym servers that joined it.
    """

    def __init__(self, config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> None:
        configure_logging(SINGLE_CONTROLLER)
        self._job = JobState(config, incarnation, servers)
        self._running: tuple[Controller, asyncio.AbstractEventLoop] | None = None
        """The controller, and the loop on which all its state is touched."""
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
        require_no_other_job(job_id, self._job.config.job_id)
        return await self._controller(self._job.incarnation).saves.begin(checkpoint_id, name)

    async def close_admission(self, incarnation: int, checkpoint_id: str, timeout_s: float) -> int:
        """See `SaveCoordinator.close_admission`."""
        return await self._controller(incarnation).saves.close_admission(checkpoint_id, timeout_s)

    async def cut_rl_state(
        self, incarnation: int, checkpoint_id: str, folder_name: str, timeout_s: float
    ) -> CutAnswer:
        """See `SaveCoordinator.cut`."""
        return await self._controller(incarnation).saves.cut(checkpoint_id, folder_name, timeout_s)

    @control
    async def renew(self, incarnation: int, checkpoint_id: str, lease_s: float) -> bool:
        """See `SaveCoordinator.renew`."""
        controller = self._controller(incarnation)
        return await self._on_loop(lambda: controller.saves.renew(checkpoint_id, lease_s))

    @control
    async def resume_checkpoint(
        self, incarnation: int, checkpoint_id: str, published: str | None
    ) -> float | None:
        """See `SaveCoordinator.resume`."""
        controller = self._controller(incarnation)
        return await self._on_loop(lambda: controller.saves.resume(checkpoint_id, published))

    @control
    async def status(self) -> ControllerStatus:
        """State of the job; always answered, and without an incarnation."""
        if self._running is None:
            return status_of(self._job)
        return await self._on_loop(self._running[0].status)

    @control
    async def servers(self, incarnation: int) -> list[JoinedServer]:
        """The servers that joined; also before the start (a NemoGym actor may come back then)."""
        self._require(incarnation)
        return self._job.servers

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
        return await self._controller(incarnation).restore.discard(restore_id)

    async def start_pumps(self, incarnation: int) -> int:
        """See `Controller.start_pumps`."""
        return self._controller(incarnation).start_pumps()

    # --- private ------------------------------------------------------------------------------

    async def _attached(self, incarnation: int) -> Controller:
        self._require(incarnation)
        async with self._attaching:
            if self._running is None:
                collaborators = Collaborators(
                    data_plane=await self._attach(),
                    host=DataPlaneHostClient(incarnation),
                    gym=NemoGymClient(incarnation),
                    folder=SnapshotFolder(self._job.config),
                )
                controller = Controller(self._job, collaborators)
                self._running = controller, asyncio.get_running_loop()
        return self._running[0]

    def _require(self, incarnation: int) -> None:
        require_incarnation(incarnation, self._job.incarnation, SINGLE_CONTROLLER)

    def _controller(self, incarnation: int) -> Controller:
        self._require(incarnation)
        if self._running is None:
            raise ControllerLost("this controller was not started", participant=SINGLE_CONTROLLER)
        return self._running[0]

    async def _on_loop(self, work: Callable[[], T]) -> T:
        """Do `work` on the controller's loop (a concurrency group has a loop of its own)."""

        async def there() -> T:
            return work()

        assert self._running is not None  # its controller is in `work`
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(there(), self._running[1])
        )


def single_controller(config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> Any:
    """Start the detached actor (named; never restarted: a restarted one would know nothing)."""
    actor = ray.remote(concurrency_groups=CONTROL_GROUPS)(SingleController)
    return actor.options(
        name=SINGLE_CONTROLLER, lifetime="detached", num_cpus=0, max_restarts=0
    ).remote(config, incarnation, servers)
