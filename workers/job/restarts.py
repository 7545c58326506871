"""Starting processes of the local stack again, for commands that work on its job.

Guarantees: one operation on the stack at a time, after another command's has ended; nothing is
started in a stack that was ended with `turnpoint down`; servers of another fleet are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gym.protocol import Capabilities, Phase
from rl.snapshots import incarnations
from workers.config import gym_servers
from workers.config.settings import Settings
from workers.errors import StackBusy
from workers.job.status import gym_capabilities
from workers.stack.record import StackRecord
from workers.stack.stack import GRACE_S, Stack

_BUSY_PAUSE_S = 0.2
_USABLE = {
    Phase.CLOSED: (Phase.CLOSED,),
    # A `join` under a new incarnation takes the other two back.
    Phase.AWAITING_RESTORE: (Phase.AWAITING_RESTORE, Phase.RESTORING, Phase.RESTORED),
}


async def _always() -> bool:
    return True


class Restarter:
    """Restarts processes of the stack, one operation after the other.

    Args:
        settings: `state_dir` says which stack.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.stack = Stack(settings)
        self._under_way: asyncio.Task[StackRecord] | None = None

    def use(self, settings: Settings) -> None:
        """Work with other settings: the stack was started again."""
        self._settings = settings

    @property
    def busy(self) -> bool:
        """True while processes are being ended and started."""
        return self._under_way is not None and not self._under_way.done()

    def let_go(self) -> None:
        """Wait no longer for a process that is being started; this frees the stack."""
        self.stack.let_go()

    async def restart(
        self,
        *names: str,
        missing: bool = False,
        expect_restore: bool | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Call `Stack.restart`, which goes on if the caller is cancelled.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            ProcessFailed: A process ended or was not ready in time.
        """
        while (names or missing) and self.stack.record() is not None:
            while self._under_way is not None and not self._under_way.done():
                await asyncio.wait({self._under_way})  # of two that wait, one is next
            self._under_way = asyncio.create_task(
                asyncio.to_thread(
                    self.stack.restart,
                    *names,
                    missing=missing,
                    expect_restore=expect_restore,
                    grace_s=grace_s,
                )
            )
            try:
                await asyncio.shield(self._under_way)
                return
            except StackBusy:
                await asyncio.sleep(_BUSY_PAUSE_S)

    async def bring_gym_into(
        self,
        phase: Phase,
        incarnation: int,
        *,
        still_needed: Callable[[], Awaitable[bool]] = _always,
    ) -> bool:
        """Restart the stack's Gym servers that are not in the phase that a start needs.

        A caller that stood still (stopped with Ctrl-Z) must not end the job that has come to life
        meanwhile: a server that has joined the incarnation, or a newer one, is left alone in any
        phase, and nothing is touched once another incarnation is the newest.

        Args:
            phase: Closed for a new line of the job, awaiting a restore for a restore.
            incarnation: The claimed one.
            still_needed: Asked last, when the servers have answered: does the start still wait
                them.

        Returns:
            True if the start still waits, so that they were restarted; else nothing was touched.
        """
        record, config = self.stack.record(), self._settings.job_config()
        if record is None:
            return True
        found, _ = await gym_capabilities(self._settings, config)
        unfit = {name for name, server in found.items() if _is_unfit(server, phase, incarnation)}
        newest = await asyncio.to_thread(incarnations.newest, config.job_folder)
        if newest != incarnation or not await still_needed():
            return False
        await self.restart(
            *sorted(unfit & gym_servers.started(self._settings.servers)),
            expect_restore=phase is Phase.AWAITING_RESTORE,
        )
        return True


def _is_unfit(server: Capabilities | None, phase: Phase, incarnation: int) -> bool:
    if server is None:
        return True
    if server.incarnation is not None and server.incarnation >= incarnation:
        return False
    return server.phase not in _USABLE[phase]
