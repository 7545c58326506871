"""Starting processes of the local stack again, for commands that work on its job.

Guarantees: one operation on the stack at a time; another command that holds the stack is waited
for; nothing is started in a stack that was ended on purpose. Where the fleet is not the stack's,
nothing is touched: its servers are waited for by whoever needs them.
"""

from __future__ import annotations

import asyncio

from gym.protocol import Phase
from workers import gym_servers
from workers.errors import StackBusy
from workers.job_status import gym_phases
from workers.settings import Settings
from workers.stack import GRACE_S, Stack
from workers.stack_record import StackRecord

_BUSY_PAUSE_S = 0.2
_USABLE = {
    Phase.CLOSED: (Phase.CLOSED,),
    # A `join` under a new incarnation takes the other two back.
    Phase.AWAITING_RESTORE: (Phase.AWAITING_RESTORE, Phase.RESTORING, Phase.RESTORED),
}


class Mender:
    """One command's hand on the stack.

    Args:
        settings: `state_dir` says which stack.
    """

    def __init__(self, settings: Settings) -> None:
        """Nothing is under way."""
        self._settings = settings
        self.stack = Stack(settings)
        self._under_way: asyncio.Task[StackRecord] | None = None

    def use(self, settings: Settings) -> None:
        """The stack was started again, with other settings."""
        self._settings = settings

    @property
    def busy(self) -> bool:
        """Whether processes are being ended and started now."""
        return self._under_way is not None and not self._under_way.done()

    async def restart(
        self,
        *names: str,
        missing: bool = False,
        expect_restore: bool | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """See `Stack.restart`. A caller that is cancelled does not end it.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            ProcessFailed: A process ended or was not ready in time.
        """
        while (names or missing) and self.stack.record() is not None:
            if self._under_way is not None:
                await asyncio.wait({self._under_way})
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

    async def bring_gym_into(self, phase: Phase) -> None:
        """Restart the stack's Gym servers that are not in the phase that a start needs.

        Args:
            phase: Closed for a new line of the job, awaiting a restore for a restore.
        """
        record = self.stack.record()
        if record is None:
            return
        phases = await gym_phases(self._settings, self._settings.job_config())
        unfit = {name for name, found in phases.items() if found not in _USABLE[phase]}
        await self.restart(
            *sorted(unfit & gym_servers.started(self._settings.servers)),
            expect_restore=phase is Phase.AWAITING_RESTORE,
        )
