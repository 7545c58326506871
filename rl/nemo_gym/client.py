"""Typed calls of the actor `NemoGym`, for activities and the Single Controller.

Guarantees: each method answers and raises as the actor's method of the same name, and as
`rl.actors.call`. `run`, `acknowledge`, `let_go` and `forget` outlive the actor: when it dies and
comes back the same call is made again, and `run` joins the run that is under way (design section
4, losing a process). All other calls are made once.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

from gym.protocol import Status, WrittenFile
from rl.actors import call
from rl.errors import ActorLost, RayUnreachable
from rl.messages import (
    NEMO_GYM,
    CommitAnswers,
    Inventory,
    PrepareAnswers,
    RunRequest,
    RunResult,
    ServerReport,
)

_PAUSE_S = 0.2
_AWAY_S = 60.0
"""Longest absence of the actor that is waited for (a restart takes Ray a few seconds)."""


class NemoGymClient:
    """The NemoGym of one incarnation; another incarnation's refuses with `StaleIncarnation`.

    Args:
        incarnation: Sent with each call.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    # --- rollouts -----------------------------------------------------------------------------

    async def run(self, request: RunRequest) -> RunResult:
        """Send a run and wait for its end, through any number of saves."""
        return cast(RunResult, await self._repeated("run", request))

    async def acknowledge(
        self, rollout_id: str, attempt_index: int, digest: str, agent: str
    ) -> None:
        """Tell the servers that RL has taken over a result."""
        await self._repeated("acknowledge", rollout_id, attempt_index, digest, agent)

    async def let_go(self, rollout_id: str, agent: str) -> None:
        """Have the agent drop a run, or result, that RL counts as failed."""
        await self._repeated("let_go", rollout_id, agent)

    async def forget(self, rollout_id: str, agent: str) -> None:
        """Have every server drop what it keeps of a rollout that has failed for good."""
        await self._repeated("forget", rollout_id, agent)

    # --- saving -------------------------------------------------------------------------------

    async def prepare_checkpoint(
        self, checkpoint_id: str, timeout_s: float, lease_s: float
    ) -> PrepareAnswers:
        """Bring every rollout to a turn boundary, within `timeout_s`."""
        answer = await self._call("prepare_checkpoint", checkpoint_id, timeout_s, lease_s)
        return cast(PrepareAnswers, answer)

    async def commit_checkpoint(
        self, checkpoint_id: str, timeout_s: float, folder_abs: str
    ) -> CommitAnswers:
        """Have every server write its part, within `timeout_s`."""
        answer = await self._call("commit_checkpoint", checkpoint_id, timeout_s, folder_abs)
        return cast(CommitAnswers, answer)

    async def inventory(self, checkpoint_id: str) -> Inventory:
        """Records that the servers answered when they committed this checkpoint."""
        return cast(Inventory, await self._call("inventory", checkpoint_id))

    async def confirm_held(self, checkpoint_id: str) -> list[ServerReport]:
        """Confirm that every server still holds this checkpoint."""
        return cast(list[ServerReport], await self._call("confirm_held", checkpoint_id))

    async def renew(
        self, checkpoint_id: str, lease_s: float, *, timeout_s: float | None = None
    ) -> bool:
        """Extend every server's lease; False if one does not hold this checkpoint."""
        return cast(bool, await self._call("renew", checkpoint_id, lease_s, timeout_s=timeout_s))

    async def resume_checkpoint(
        self, checkpoint_id: str, unreachable_s: float, *, timeout_s: float | None = None
    ) -> list[ServerReport]:
        """Open every server again; one silent for `unreachable_s` counts as resumed."""
        answer = await self._call(
            "resume_checkpoint", checkpoint_id, unreachable_s, timeout_s=timeout_s
        )
        return cast(list[ServerReport], answer)

    # --- restoring ----------------------------------------------------------------------------

    async def restore_checkpoint(
        self,
        restore_id: str,
        source_checkpoint_id: str,
        folder_abs: str,
        files: list[WrittenFile],
    ) -> list[ServerReport]:
        """Have every server load its part; all stay closed."""
        answer = await self._call(
            "restore_checkpoint", restore_id, source_checkpoint_id, folder_abs, files
        )
        return cast(list[ServerReport], answer)

    async def restored_inventory(self, restore_id: str) -> Inventory:
        """Records that the servers answered when they restored under this id."""
        return cast(Inventory, await self._call("restored_inventory", restore_id))

    async def discard(self, restore_id: str, rollout_ids: list[str]) -> None:
        """Drop what was restored of these rollouts."""
        await self._call("discard", restore_id, rollout_ids)

    async def resume_restored(self, restore_id: str) -> list[ServerReport]:
        """Open the restored servers."""
        return cast(list[ServerReport], await self._call("resume_restored", restore_id))

    async def status(self, *, timeout_s: float | None = None) -> list[Status]:
        """Status of every server that has the control routes and answers."""
        return cast(list[Status], await self._call("status", timeout_s=timeout_s))

    async def _call(self, method: str, *args: object, timeout_s: float | None = None) -> object:
        return await call(NEMO_GYM, method, self._incarnation, *args, timeout_s=timeout_s)

    async def _repeated(self, method: str, *args: object) -> object:
        away_since: float | None = None
        while True:
            began = time.monotonic()
            try:
                return await self._call(method, *args)
            except (ActorLost, RayUnreachable):
                now = time.monotonic()
                # A call that took long was with a living actor: its loss is a new one.
                if away_since is None or now - began > _PAUSE_S * 10:
                    away_since = now
                if now - away_since > _AWAY_S:
                    raise
            await asyncio.sleep(_PAUSE_S)
