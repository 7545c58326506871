"""Typed calls of the actor `SingleController`, for activities and other actors.

Guarantees: each method answers and raises as the actor's method of the same name, and as
`rl.actors.call`; it is one call, never repeated.
"""

from __future__ import annotations

from typing import cast

from gym.protocol import WrittenFile
from rl.actors import call
from rl.config import Workload
from rl.messages import (
    SINGLE_CONTROLLER,
    BeginAnswer,
    ContinuedRollout,
    ControllerStatus,
    CutAnswer,
    JoinedServer,
    StartAnswer,
)


class SingleControllerClient:
    """The controller of one incarnation; another incarnation's refuses with `StaleIncarnation`.

    Args:
        incarnation: Sent with each call, except `status` and `begin_checkpoint`.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    @staticmethod
    async def status(*, timeout_s: float | None = None) -> ControllerStatus:
        """State of the job that lives in this cluster, of any incarnation."""
        return cast(ControllerStatus, await call(SINGLE_CONTROLLER, "status", timeout_s=timeout_s))

    @staticmethod
    async def begin_checkpoint(
        job_id: str, checkpoint_id: str, name: str | None, *, timeout_s: float | None = None
    ) -> BeginAnswer:
        """Agree to a save, or say why not; the answer tells the incarnation."""
        answer = await call(
            SINGLE_CONTROLLER, "begin_checkpoint", job_id, checkpoint_id, name, timeout_s=timeout_s
        )
        return cast(BeginAnswer, answer)

    async def close_admission(self, checkpoint_id: str, timeout_s: float) -> int:
        """Send no new rollout and pay what is owed, within `timeout_s`; answers how many."""
        return cast(int, await self._call("close_admission", checkpoint_id, timeout_s))

    async def cut_rl_state(
        self, checkpoint_id: str, folder_name: str, timeout_s: float
    ) -> CutAnswer:
        """Write RL's own files into the unpublished folder, within `timeout_s`."""
        answer = await self._call("cut_rl_state", checkpoint_id, folder_name, timeout_s)
        return cast(CutAnswer, answer)

    async def renew(
        self, checkpoint_id: str, lease_s: float, *, timeout_s: float | None = None
    ) -> bool:
        """Extend the controller's lease; False if this checkpoint does not hold it."""
        return cast(bool, await self._call("renew", checkpoint_id, lease_s, timeout_s=timeout_s))

    async def resume_checkpoint(
        self, checkpoint_id: str, published: str | None, *, timeout_s: float | None = None
    ) -> float | None:
        """End the save and send again; answers the length of the pause in seconds."""
        answer = await self._call(
            "resume_checkpoint", checkpoint_id, published, timeout_s=timeout_s
        )
        return cast("float | None", answer)

    async def servers(self, *, timeout_s: float | None = None) -> list[JoinedServer]:
        """The Gym servers that joined this incarnation."""
        return cast(list[JoinedServer], await self._call("servers", timeout_s=timeout_s))

    async def start_fresh(self, workload: Workload) -> None:
        """Start at the first prompt; repeatable with the same workload."""
        await self._call("start_fresh", workload)

    async def start_restored(
        self, restore_id: str, folder_abs: str, files: list[WrittenFile]
    ) -> StartAnswer:
        """Load RL's own state from a snapshot; nothing is sent yet."""
        return cast(StartAnswer, await self._call("start_restored", restore_id, folder_abs, files))

    async def discard_continuations(self, restore_id: str) -> list[ContinuedRollout]:
        """Start rollouts over that cannot continue; answers them."""
        return cast(list[ContinuedRollout], await self._call("discard_continuations", restore_id))

    async def start_pumps(self) -> int:
        """Begin to send; answers how many restored rollouts are sent again."""
        return cast(int, await self._call("start_pumps"))

    async def _call(self, method: str, *args: object, timeout_s: float | None = None) -> object:
        return await call(SINGLE_CONTROLLER, method, self._incarnation, *args, timeout_s=timeout_s)
