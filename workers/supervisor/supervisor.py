"""`turnpoint run` after the start: look, decide, do, until the job has come to its end.

Guarantees: losing a process with state, or all of them, ends in a restore from the newest
snapshot of the current line without anybody typing; without a snapshot the job starts over as a
new line. Losing one without state costs a restart of that process. A recovery that fails is
tried again after a back-off that grows up to `MOST_BACKOFF_S`; `GIVE_UP_AFTER` in a row that
got nowhere end the supervision. Nothing of a live job is touched before its next incarnation is
claimed, and nothing of a stack that somebody has ended with `turnpoint down`.

Not guaranteed: anything after the death of this process; `turnpoint run` begins again, and
`docker/turnpoint.service` has systemd begin it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gym.client import GymClient
from gym.protocol import TurnpointError
from rl.messages import ControllerStatus, Workload
from workers.config.key_files import read_control_token
from workers.config.settings import Settings
from workers.errors import Stopped, WorkerRoomError
from workers.job import commands as job_runs
from workers.job import ray_client as ray_side
from workers.job.restarts import Mender
from workers.job.workflows import Shown
from workers.stack.process_specs import WORKER_PREFIX
from workers.supervisor.decide import (
    RAY,
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
from workers.supervisor.event_log import Event, EventLog
from workers.supervisor.observe import Observer

LOOK_EVERY_S = 0.5
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
GIVE_UP_AFTER = 20
"""Recoveries in a row that got nowhere: some eight minutes of back-off and as much of work."""
STEADY_S = 60.0
"""A job that has lived so long has got somewhere, even if no rollout has finished."""
MENDING_LIMIT_S = 10.0
"""How long the end of the job waits for a process that is being started."""
HOPELESS = {"no_snapshot", "dataset_invalid", "other_job", "unauthorized", "invalid_request"}
"""Failures that no repetition mends: a person has to choose."""


class GivenUp(WorkerRoomError):
    """The supervisor cannot bring the job back; the last reason is in the sentence."""

    code = "given_up"


class Supervisor:
    """Keeps one job alive.

    Args:
        settings: Of the job and its stack.
        workload: What it rolls out if it has to start over.
        incarnation: The one that lives now.
        watch: Looks at the job in Ray.
        event_log: Told what is noticed and done.
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
        on_progress: Shown,
    ) -> None:
        """Supervise nothing yet."""
        self._workload = workload
        self.incarnation = incarnation
        self._watch = watch
        self._event_log = event_log
        self._report_status = on_status
        self._on_progress = on_progress
        self._mender = Mender(settings)
        self._observer = Observer(settings, watch, self._mender, self._on_status)
        self._recovering: asyncio.Task[None] | None = None
        self._to_start: frozenset[str] = frozenset()
        """What a recovery has found gone and has not started yet."""
        self._lost: dict[str, None] = {}
        """Why the job is being brought back, in order; more may be lost meanwhile."""
        self._mending: dict[str, asyncio.Task[None]] = {}
        self._unanswered: frozenset[str] = frozenset()
        """Gym servers of others whose silence was told."""
        self._in_a_row = 0
        self._alive_since = time.monotonic()
        self._finished = -1

    @property
    def settings(self) -> Settings:
        """Of the stack as it runs now."""
        return self._observer.settings

    @property
    def is_recovering(self) -> bool:
        """Whether the job is being brought back now."""
        return self._recovering is not None and not self._recovering.done()

    def let_go(self) -> None:
        """Wait no longer for processes that are being started: see `Mender.let_go`."""
        self._mender.let_go()

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
                        starting=self._mending.keys() | self._to_start,
                    )
                    action = decide(seen)
                    if isinstance(action, End):
                        await self._end_mending()
                        return action.status
                    if isinstance(action, Wait) and _is_well(seen):
                        self._lost.clear()  # it was only silent, and answers again
                    self._tell_of_others(unanswered(seen))
                    self._do(action, seen)
                    await asyncio.sleep(LOOK_EVERY_S)
                    self._collect()
        finally:
            await self._cancel_all()

    def _tell_of_others(self, silent: frozenset[str]) -> None:
        """Gym servers that the stack does not start: say once that they are gone, or back."""
        servers = {server.name: server for server in self.settings.servers}
        for name in sorted(silent - self._unanswered):
            self._event_log.write(
                "unanswered",
                f"{name} at {servers[name].url} does not answer, and the stack cannot start it: "
                "it has no `command` in turnpoint.toml. Start it with `--expect-restore true`, "
                "and the job's other servers without a `command` too; the job is then restored",
                participant=name,
            )
            self._event_log.add(Event(ts=time.time(), what="unanswered", reasons=[name]))
        for name in sorted(self._unanswered - silent):
            self._event_log.write("answers_again", f"{name} answers again", participant=name)
        self._unanswered = silent

    # --- doing --------------------------------------------------------------------------------

    def _do(self, action: Action, seen: Observation) -> None:
        match action:
            case Leave(reason):
                raise Stopped(reason)
            case Adopt(incarnation):
                self.incarnation = incarnation
                self._alive(f"incarnation {incarnation} lives, started by somebody else")
                self._event_log.add(Event(ts=time.time(), what="adopted", incarnation=incarnation))
            case Restart(names):
                for name in sorted(names):
                    self._mend(name, self._restart(name))
            case Revive(actors):
                self._mend("actors", self._revive(actors))
            case Recover():
                self._begin_recovery(action, seen)
            case Wait() | End():
                pass

    def _mend(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._mending:
            work.close()
            return
        self._mending[name] = asyncio.create_task(work)

    async def _restart(self, name: str) -> None:
        """Start a process without state, again and again until it is ready."""

        async def start() -> None:
            # A recovery of the whole job may have started it meanwhile.
            if name in await asyncio.to_thread(self._mender.stack.gone):
                await self._mender.restart(name, grace_s=0)

        await self._mended(name, start)

    async def _revive(self, actors: tuple[str, ...]) -> None:
        await self._mended(
            ", ".join(actors),
            lambda: ray_side.start_stateless(self.settings, self.incarnation),
        )

    async def _mended(self, name: str, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        reason = f"{name} is gone"
        self._event_log.write("noticed", f"{reason}: starting it again; the job goes on")
        began, wait_s = time.monotonic(), FIRST_BACKOFF_S
        while True:
            try:
                await start()
                break
            except Stopped:
                raise
            except WorkerRoomError as error:
                self._event_log.write(
                    "failed_try", f"{error.code}: {_first_line(error)}; again in {wait_s:g} s"
                )
                await asyncio.sleep(wait_s)
                wait_s = min(MOST_BACKOFF_S, wait_s * 2)
        took_s = time.monotonic() - began
        self._event_log.write("restarted", f"{name} runs again after {took_s:.1f} s")
        self._event_log.add(
            Event(
                ts=time.time(),
                what="restarted",
                reasons=[reason],
                processes=[name],
                incarnation=self.incarnation,
                took_s=took_s,
            )
        )

    def _begin_recovery(self, action: Recover, seen: Observation) -> None:
        if self._recovering is not None and not self._recovering.done():
            self._recovering.cancel()  # what it waits for will not come
        self._in_a_row += 1
        self._lost |= dict.fromkeys(action.reasons)
        why = "; ".join(action.reasons)
        if self._in_a_row > GIVE_UP_AFTER:
            raise GivenUp(f"{GIVE_UP_AFTER} recoveries in a row got nowhere; the last: {why}")
        wait_s = backoff_s(self._in_a_row)
        then = f"in {wait_s:g} s" if wait_s else "now"
        self._event_log.write(
            "lost", f"{why}: bringing the job back {then}", reasons=action.reasons, wait_s=wait_s
        )
        # What the last one has not started yet is still to be started, and no news.
        before, self._to_start = self._recovering, self._to_start | seen.gone
        gone = self._to_start
        self._recovering = asyncio.create_task(self._recover(action, gone, wait_s, before))

    async def _recover(
        self,
        action: Recover,
        gone: frozenset[str],
        wait_s: float,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        await asyncio.sleep(wait_s)
        began = time.monotonic()
        with_ray = self._drivers() if action.ray_is_lost else set()
        if names := gone | with_ray:
            self._event_log.write("starting", f"starting {', '.join(sorted(names))}")
        # What is missing by then: a machine's processes do not end in one instant, and somebody
        # else may have started some.
        await self._mender.restart(
            *sorted(with_ray), missing=True, expect_restore=await self._has_snapshot(), grace_s=0
        )
        self._to_start = frozenset()
        if action.ray_is_lost:
            await self._watch.again(self.settings)
        # Asked again: the save that ran when the job was lost may have published meanwhile.
        has_snapshot = await self._has_snapshot()
        if not has_snapshot:
            self._event_log.write(
                "starting_over", "there is no snapshot: starting over, as a new line"
            )
        begun = await job_runs.begin(
            self.settings,
            self._workload,
            fresh=not has_snapshot,
            shown=self._on_progress,
            replace=True,
            mender=self._mender,
        )
        took_s = time.monotonic() - began
        snapshot = begun.restored.snapshot if begun.restored else None
        self.incarnation = begun.incarnation
        self._event_log.add(
            Event(
                ts=time.time(),
                what="restored" if snapshot else "started_over",
                reasons=list(self._lost),
                incarnation=begun.incarnation,
                snapshot=snapshot,
                took_s=took_s,
            )
        )
        self._alive(
            f"restored {snapshot} as incarnation {begun.incarnation} after {took_s:.1f} s"
            if snapshot
            else f"started over as incarnation {begun.incarnation} after {took_s:.1f} s"
        )

    async def _has_snapshot(self) -> bool:
        config = self.settings.job_config()
        return await asyncio.to_thread(job_runs.has_snapshot_on_line, config)

    def _drivers(self) -> set[str]:
        """Ray and the workers, whose connection is to the Ray that is lost."""
        record = self._mender.stack.record()
        if record is None:
            return set()
        workers = {p.name for p in record.processes if p.name.startswith(WORKER_PREFIX)}
        return workers | ({RAY} & record.ports.keys())

    def _on_status(self, status: ControllerStatus) -> None:
        """The controller of the supervised incarnation has answered."""
        self._report_status(status)
        lived_s = time.monotonic() - self._alive_since
        # A life that is lost goes on for a while, and may finish rollouts: that is no success.
        if not self._lost and (status.finished > self._finished >= 0 or lived_s > STEADY_S):
            self._in_a_row = 0
        self._finished = status.finished

    def _alive(self, text: str) -> None:
        self._finished = -1
        self._lost.clear()
        self._alive_since = time.monotonic()
        self._observer.lives_since(self._alive_since)
        self._event_log.write("alive", text, incarnation=self.incarnation)

    # --- what has ended -----------------------------------------------------------------------

    def _collect(self) -> None:
        """Take the outcomes of what is over."""
        for name, task in list(self._mending.items()):
            if task.done():
                del self._mending[name]
                if not task.cancelled():
                    task.result()  # only `Stopped`, or a bug
        if self._recovering is None or not self._recovering.done():
            return
        task, self._recovering = self._recovering, None
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Stopped) or not isinstance(error, WorkerRoomError | TurnpointError):
            raise error
        self._to_start = frozenset()
        self._event_log.write("failed_try", f"{error.code}: {_first_line(error)}")
        self._event_log.add(Event(ts=time.time(), what="failed_try", reasons=[error.code]))
        if error.code in HOPELESS:
            raise GivenUp(f"the job cannot be brought back by itself: {error}")
        if error.code != "superseded":  # then the newest claim was its own: nobody works on it
            self._observer.newest_claim_failed()

    async def _end_mending(self) -> None:
        """The job has finished while a process was being started: let that be."""
        if self._mending:
            await asyncio.wait(self._mending.values(), timeout=MENDING_LIMIT_S)

    async def _cancel_all(self) -> None:
        tasks = [*self._mending.values(), *([self._recovering] if self._recovering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def backoff_s(tries: int) -> float:
    """Seconds before the n-th recovery in a row that got nowhere; the first comes at once."""
    if tries <= 1:
        return 0.0
    return min(MOST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (tries - 2))


def _is_well(seen: Observation) -> bool:
    """Whether the supervised incarnation answers, if nothing of it is lost."""
    return not seen.recovering and seen.status is not None and seen.newest == seen.incarnation


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
