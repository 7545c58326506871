"""The Single Controller's collaborators: TransferQueue, the other actors, the folder, the clocks.

Guarantees: a run and what follows it (an acknowledgement, `let_go`, `forget`) outlive the NemoGym
actor: when it dies and comes back the same call is made again, and `/run` joins the run that is
there (design section 4, losing a process). All other calls are made once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gym.lease import lease_clock
from gym.protocol import Status, WrittenFile
from rl.actors import call
from rl.errors import ActorLost, RayUnreachable
from rl.messages import (
    DATA_PLANE_HOST,
    NEMO_GYM,
    Inventory,
    RunRequest,
    RunResult,
    ServerReport,
)
from rl.snapshots.folder import SnapshotFolder

if TYPE_CHECKING:  # importing it imports torch, for seconds
    from rl.data_plane.transfer_queue import DataPlane

_PAUSE_S = 0.2
_AWAY_S = 60.0
"""Longest absence of NemoGym that is waited for (a restart takes Ray a few seconds)."""


class DataPlaneHostClient:
    """The actor that hosts TransferQueue; calls carry `incarnation`."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    async def save(self, folder: str) -> list[WrittenFile]:
        """See `DataPlaneHost.save`."""
        files: list[WrittenFile] = await call(DATA_PLANE_HOST, "save", self._incarnation, folder)
        return files


class NemoGymClient:
    """The NemoGym actor; calls carry `incarnation`."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    async def run(self, request: RunRequest) -> RunResult:
        """See `NemoGym.run`."""
        result: RunResult = await self._repeated("run", request)
        return result

    async def acknowledge(
        self, rollout_id: str, attempt_index: int, digest: str, agent: str
    ) -> None:
        """See `NemoGym.acknowledge`."""
        await self._repeated("acknowledge", rollout_id, attempt_index, digest, agent)

    async def let_go(self, rollout_id: str, agent: str) -> None:
        """See `NemoGym.let_go`."""
        await self._repeated("let_go", rollout_id, agent)

    async def forget(self, rollout_id: str, agent: str) -> None:
        """See `NemoGym.forget`."""
        await self._repeated("forget", rollout_id, agent)

    async def status(self) -> list[Status]:
        """See `NemoGym.status`."""
        found: list[Status] = await self._once("status")
        return found

    async def inventory(self, checkpoint_id: str) -> Inventory:
        """See `NemoGym.inventory`."""
        found: Inventory = await self._once("inventory", checkpoint_id)
        return found

    async def confirm_held(self, checkpoint_id: str) -> list[ServerReport]:
        """See `NemoGym.confirm_held`."""
        reports: list[ServerReport] = await self._once("confirm_held", checkpoint_id)
        return reports

    async def restored_inventory(self, restore_id: str) -> Inventory:
        """See `NemoGym.restored_inventory`."""
        found: Inventory = await self._once("restored_inventory", restore_id)
        return found

    async def discard(self, restore_id: str, rollout_ids: list[str]) -> None:
        """See `NemoGym.discard`."""
        await self._once("discard", restore_id, rollout_ids)

    async def _once(self, method: str, *args: Any) -> Any:
        return await call(NEMO_GYM, method, self._incarnation, *args)

    async def _repeated(self, method: str, *args: Any) -> Any:
        away_since: float | None = None
        while True:
            began = time.monotonic()
            try:
                return await self._once(method, *args)
            except (ActorLost, RayUnreachable):
                now = time.monotonic()
                # A call that took long was with a living actor: its loss is a new one.
                if away_since is None or now - began > _PAUSE_S * 10:
                    away_since = now
                if now - away_since > _AWAY_S:
                    raise
            await asyncio.sleep(_PAUSE_S)


@dataclass(frozen=True)
class Collaborators:
    """All of them, and the clocks (seconds, never going back)."""

    data_plane: DataPlane
    host: DataPlaneHostClient
    gym: NemoGymClient
    folder: SnapshotFolder
    clock: Callable[[], float] = time.monotonic
    """Measures the pause of a save."""
    lease_clock: Callable[[], float] = lease_clock
