"""`turnpoint run` after the start: observe, decide, act, until the job has come to its end.

Guarantees: losing a process with state, or all of them, ends in a restore from the newest
snapshot of the current line without a person's command (`workers.supervisor.recovery`). Losing one
without state costs a restart of that process (`workers.supervisor.repairs`). Nothing of a stack
that was ended with `turnpoint down` is touched.

Not guaranteed: anything after the death of this process; `turnpoint run` begins again, and
`docker/turnpoint.service` has systemd begin it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from gym.client import GymClient
from rl.config import Workload
from rl.messages import ControllerStatus
from workers.config.key_files import read_control_token
from workers.config.settings import Settings
from workers.errors import Stopped
from workers.job import ray_client as ray_side
from workers.job.restarts import Restarter
from workers.job.workflows import OnProgress
from workers.supervisor.decide import (
    Action,
    Adopt,
    End,
    Leave,
    Observation,
    Recover,
    Restart,
    Revive,
    Wait,
    decide,
    unanswered,
)
from workers.supervisor.event_log import EventLog
from workers.supervisor.observe import Observer
from workers.supervisor.recovery import Recovery
from workers.supervisor.repairs import Repairs

LOOK_EVERY_S = 0.5


class Supervisor:
    """Keeps one job alive.

    Args:
        settings: Of the job and its stack.
        workload: What it rolls out if it has to start over.
        incarnation: The one that lives now.
        watch: Looks at the job in Ray.
        event_log: Gets what is noticed and done.
        on_status: Called with each status of the controller.
        on_progress: Called with the phases of a restore.
    """

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        incarnation: int,
        watch: ray_side.JobWatch,
        event_log: EventLog,
        on_status: Callable[[ControllerStatus], None],
        on_progress: OnProgress,
    ) -> None:
        self.incarnation = incarnation
        self._event_log = event_log
        self._restarter = Restarter(settings)
        self._observer = Observer(settings, watch, self._restarter)
        self._repairs = Repairs(event_log)
        self._recovery = Recovery(
            workload,
            watch,
            self._restarter,
            self._observer,
            event_log,
            on_progress,
            self._on_alive,
        )
        self._on_status = on_status
        self._unanswered: frozenset[str] = frozenset()
        """Gym servers that the stack does not start, and whose silence was reported."""

    @property
    def settings(self) -> Settings:
        """Of the stack as it runs now."""
        return self._observer.settings

    @property
    def is_recovering(self) -> bool:
        """True while the job is being brought back now."""
        return self._recovery.is_under_way

    def let_go(self) -> None:
        """Wait no longer for processes that are being started: see `Restarter.let_go`."""
        self._restarter.let_go()

    async def run(self) -> ControllerStatus:
        """Supervise the job to its end.

        Returns:
            The controller's last status.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            GivenUp: The job cannot be brought back.
        """
        try:
            async with GymClient(read_control_token(self.settings)) as gym:
                while True:
                    seen = await self._observer.observe(
                        gym,
                        self.incarnation,
                        recovering=self.is_recovering,
                        starting=self._repairs.names | self._recovery.to_start,
                    )
                    if (status := seen.status) and status.incarnation == self.incarnation:
                        self._on_status(status)
                        self._recovery.on_status(status)
                    action = decide(seen)
                    if isinstance(action, End):
                        await self._repairs.finish()
                        return action.status
                    if isinstance(action, Wait) and _is_well(seen):
                        self._recovery.on_well()
                    self._report_silent_servers(unanswered(seen))
                    self._act(action, seen)
                    await asyncio.sleep(LOOK_EVERY_S)
                    self._repairs.collect()
                    self._recovery.collect()
        finally:
            await self._repairs.cancel()
            await self._recovery.cancel()

    def _act(self, action: Action, seen: Observation) -> None:
        match action:
            case Leave(reason):
                raise Stopped(reason)
            case Adopt(incarnation):
                self._on_alive(
                    incarnation, f"incarnation {incarnation} lives, started by another command"
                )
                self._event_log.add("adopted", incarnation=incarnation)
            case Restart(names):
                for name in sorted(names):
                    self._repairs.begin(name, self.incarnation, partial(self._restart, name))
            case Revive(actors):
                self._repairs.begin(
                    "actors", self.incarnation, self._start_actors, what=", ".join(actors)
                )
            case Recover():
                self._recovery.begin(action, seen.gone)
            case Wait() | End():
                pass

    async def _restart(self, name: str) -> None:
        # A recovery of the whole job may have started it meanwhile.
        if name in await asyncio.to_thread(self._restarter.stack.gone):
            await self._restarter.restart(name, grace_s=0)

    async def _start_actors(self) -> None:
        await ray_side.start_stateless(self.settings, self.incarnation)

    def _on_alive(self, incarnation: int, text: str) -> None:
        self.incarnation = incarnation
        now = time.monotonic()
        self._recovery.on_new_life(now)
        self._observer.on_new_life(now)
        self._event_log.write("alive", text, incarnation=incarnation)

    def _report_silent_servers(self, silent: frozenset[str]) -> None:
        """Report once that Gym servers which the stack does not start are gone, or back."""
        servers = {server.name: server for server in self.settings.servers}
        for name in sorted(silent - self._unanswered):
            self._event_log.write(
                "unanswered",
                f"{name} at {servers[name].url} does not answer, and the stack cannot start it: "
                "it has no `command` in turnpoint.toml. Start it with `--expect-restore true`, "
                "and the job's other servers without a `command` too; the job is then restored",
                participant=name,
            )
            self._event_log.add("unanswered", reasons=[name])
        for name in sorted(self._unanswered - silent):
            self._event_log.write("answers_again", f"{name} answers again", participant=name)
        self._unanswered = silent


def _is_well(seen: Observation) -> bool:
    """True if the supervised incarnation answers, provided nothing of it is lost."""
    return not seen.recovering and seen.status is not None and seen.newest == seen.incarnation
