"""What the Single Controller calls on the other actors, with its incarnation put in front.

Guarantees: a run and an acknowledgement outlive the NemoGym actor: when it dies and comes back
the same call is made again, and `/run` joins what is there (design section 4, losing a process).
All other calls are made once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

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

_PAUSE_S = 0.2
_PATIENCE_S = 60.0
"""How long NemoGym may be away in one go (a restart takes Ray a few seconds)."""


class RayHost:
    """The actor that hosts TransferQueue."""

    def __init__(self, incarnation: int) -> None:
        """Calls carry `incarnation`."""
        self._incarnation = incarnation

    async def save(self, folder: str) -> list[WrittenFile]:
        """See `DataPlaneHost.save`."""
        files: list[WrittenFile] = await call(DATA_PLANE_HOST, "save", self._incarnation, folder)
        return files


class RayGym:
    """The NemoGym actor."""

    def __init__(self, incarnation: int) -> None:
        """Calls carry `incarnation`."""
        self._incarnation = incarnation

    async def run(self, request: RunRequest) -> RunResult:
        """See `NemoGym.run`."""
        result: RunResult = await self._patiently("run", request)
        return result

    async def acknowledge(
        self, rollout_id: str, attempt_index: int, digest: str, agent: str
    ) -> None:
        """See `NemoGym.acknowledge`."""
        await self._patiently("acknowledge", rollout_id, attempt_index, digest, agent)

    async def let_go(self, rollout_id: str, agent: str) -> None:
        """See `NemoGym.let_go`."""
        await self._patiently("let_go", rollout_id, agent)

    async def forget(self, rollout_id: str, agent: str) -> None:
        """See `NemoGym.forget`."""
        await self._patiently("forget", rollout_id, agent)

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

    async def _patiently(self, method: str, *args: Any) -> Any:
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
                if now - away_since > _PATIENCE_S:
                    raise
            await asyncio.sleep(_PAUSE_S)
