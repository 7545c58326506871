"""The Ray actor NemoGym: every call that concerns rollouts goes through it (design section 3).

Guarantees: all state and all connections live on one event loop of its own thread, whatever
concurrency group a call comes in by, so control calls work while thousands of runs are under
way. A call of another incarnation is refused. It may die and come back under a live job: it then
takes the server list from the Single Controller and never joins servers again; runs and
inventories are gone, the controller sends its runs again and `/run` joins them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import ray
from pydantic import SecretStr

from gym.client import GymClient
from gym.logs import configure_logging
from gym.protocol import DeadlineExceeded, SecretFileRefused, Status, WrittenFile
from gym.secret_file import read_secret_file
from rl.actor_methods import CONTROL_GROUPS, control, require_incarnation
from rl.config import JobConfig
from rl.controller.client import SingleControllerClient
from rl.errors import ActorLost, ControllerLost, ServerUnfit
from rl.messages import (
    NEMO_GYM,
    CommitAnswers,
    Inventory,
    JoinedServer,
    PrepareAnswers,
    RunRequest,
    RunResult,
    ServerReport,
)
from rl.nemo_gym import restore, save
from rl.nemo_gym.fleet import Fleet
from rl.nemo_gym.service import NemoGymService

T = TypeVar("T")
_RUNS = 20_000
"""Runs and acknowledgements under way at once; Ray's default of 1,000 would queue the rest."""
_CONTROLLER_S = 10.0


class NemoGym:
    """The actor. Make it with `nemo_gym`.

    Args:
        config: The job's configuration.
        incarnation: The one it speaks for; calls of another are refused.
        servers: The Gym servers that joined it; None to take them from the controller.
    """

    def __init__(
        self, config: JobConfig, incarnation: int, servers: list[JoinedServer] | None
    ) -> None:
        configure_logging(NEMO_GYM)
        self._config = config
        self._incarnation = incarnation
        self._servers = servers
        self._came_back = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._service: NemoGymService | None = None
        self._building = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nemo-gym", daemon=True).start()

    # --- rollouts -----------------------------------------------------------------------------

    async def run(self, incarnation: int, request: RunRequest) -> RunResult:
        """See `Runs.run`."""
        return await self._do(incarnation, lambda service: service.runs.run(request))

    async def acknowledge(
        self, incarnation: int, rollout_id: str, attempt_index: int, digest: str, agent: str
    ) -> None:
        """See `Runs.acknowledge`."""
        await self._do(
            incarnation,
            lambda service: service.runs.acknowledge(rollout_id, attempt_index, digest, agent),
        )

    async def let_go(self, incarnation: int, rollout_id: str, agent: str) -> None:
        """See `Runs.let_go`."""
        await self._do(incarnation, lambda service: service.runs.let_go(rollout_id, agent))

    async def forget(self, incarnation: int, rollout_id: str, agent: str) -> None:
        """See `Runs.forget`."""
        await self._do(incarnation, lambda service: service.runs.forget(rollout_id, agent))

    # --- saving -------------------------------------------------------------------------------

    @control
    async def prepare_checkpoint(
        self, incarnation: int, checkpoint_id: str, timeout_s: float, lease_s: float
    ) -> PrepareAnswers:
        """See `rl.nemo_gym.save.prepare`."""
        return await self._do(
            incarnation, lambda service: service.prepare(checkpoint_id, timeout_s, lease_s)
        )

    @control
    async def commit_checkpoint(
        self, incarnation: int, checkpoint_id: str, timeout_s: float, folder_abs: str
    ) -> CommitAnswers:
        """See `rl.nemo_gym.save.commit`."""
        return await self._do(
            incarnation, lambda service: service.commit(checkpoint_id, timeout_s, Path(folder_abs))
        )

    @control
    async def inventory(self, incarnation: int, checkpoint_id: str) -> Inventory:
        """See `NemoGymService.inventory`."""
        return await self._do(incarnation, lambda service: service.inventory(checkpoint_id))

    @control
    async def confirm_held(self, incarnation: int, checkpoint_id: str) -> list[ServerReport]:
        """See `rl.nemo_gym.save.confirm_held`."""
        return await self._do(
            incarnation, lambda service: save.confirm_held(service.fleet, checkpoint_id)
        )

    @control
    async def renew(self, incarnation: int, checkpoint_id: str, lease_s: float) -> bool:
        """See `NemoGymService.renew`."""
        return await self._do(incarnation, lambda service: service.renew(checkpoint_id, lease_s))

    @control
    async def resume_checkpoint(
        self, incarnation: int, checkpoint_id: str, unreachable_s: float = save.UNREACHABLE_S
    ) -> list[ServerReport]:
        """See `rl.nemo_gym.save.resume_servers`."""

        async def resume(service: NemoGymService) -> list[ServerReport]:
            fleet = service.fleet
            return await save.resume_servers(
                fleet.client, fleet.servers, incarnation, checkpoint_id, unreachable_s
            )

        return await self._do(incarnation, resume)

    # --- restoring ----------------------------------------------------------------------------

    @control
    async def restore_checkpoint(
        self,
        incarnation: int,
        restore_id: str,
        source_checkpoint_id: str,
        folder_abs: str,
        files: list[WrittenFile],
    ) -> list[ServerReport]:
        """See `rl.nemo_gym.restore.restore`."""
        return await self._do(
            incarnation,
            lambda service: service.restore(
                restore_id, source_checkpoint_id, Path(folder_abs), files
            ),
        )

    @control
    async def restored_inventory(self, incarnation: int, restore_id: str) -> Inventory:
        """See `NemoGymService.restored_inventory`."""
        return await self._do(incarnation, lambda service: service.restored_inventory(restore_id))

    @control
    async def discard(self, incarnation: int, restore_id: str, rollout_ids: list[str]) -> None:
        """See `rl.nemo_gym.restore.discard`."""
        await self._do(
            incarnation, lambda service: restore.discard(service.fleet, restore_id, rollout_ids)
        )

    @control
    async def resume_restored(self, incarnation: int, restore_id: str) -> list[ServerReport]:
        """See `rl.nemo_gym.restore.resume_restored`."""
        return await self._do(
            incarnation, lambda service: restore.resume_restored(service.fleet, restore_id)
        )

    @control
    async def status(self, incarnation: int) -> list[Status]:
        """See `Fleet.statuses`."""
        return await self._do(incarnation, lambda service: service.fleet.statuses())

    # --- the shell ----------------------------------------------------------------------------

    async def _do(self, incarnation: int, work: Callable[[NemoGymService], Awaitable[T]]) -> T:
        """Do `work` on the loop that owns the state; a cancelled call cancels it there."""
        require_incarnation(incarnation, self._incarnation, NEMO_GYM)

        async def there() -> T:
            return await work(await self._built())

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self._loop))

    async def _built(self) -> NemoGymService:
        async with self._building:
            if self._service is None:
                servers = await self._server_list()
                client = GymClient(_token(self._config))
                self._service = NemoGymService(Fleet(client, servers, self._incarnation))
            return self._service

    async def _server_list(self) -> list[JoinedServer]:
        if self._servers is not None and not self._came_back:
            return self._servers
        try:
            controller = SingleControllerClient(self._incarnation)
            return await controller.servers(timeout_s=_CONTROLLER_S)
        except (ActorLost, DeadlineExceeded) as silent:
            # Before the controller starts, a restore has handed the same list to this actor: it
            # never changes within an incarnation.
            if self._servers is not None:
                return self._servers
            if isinstance(silent, DeadlineExceeded):  # no run has failed: it is sent again
                raise ActorLost("the controller is busy", participant=NEMO_GYM) from None
            raise ControllerLost("the list of joined servers is lost with the controller") from None


def nemo_gym(config: JobConfig, incarnation: int, servers: list[JoinedServer] | None) -> Any:
    """Start the detached actor (named; Ray starts it again when it dies).

    Args:
        config: The job's configuration.
        incarnation: The one it speaks for.
        servers: What `discover_and_join` has answered; None to ask the controller.
    """
    actor = ray.remote(concurrency_groups=CONTROL_GROUPS)(NemoGym)
    return actor.options(
        name=NEMO_GYM, lifetime="detached", num_cpus=0, max_restarts=-1, max_concurrency=_RUNS
    ).remote(config, incarnation, servers)


def _token(config: JobConfig) -> SecretStr:
    try:
        return read_secret_file(config.control_token_file, "control_token_file")
    except SecretFileRefused as error:
        raise ServerUnfit(str(error)) from None
