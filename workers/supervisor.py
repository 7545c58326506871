"""`turnpoint run` after the start: look, decide, do, until the job has come to its end.

Guarantees: losing a process with state, or all of them, ends in a restore from the newest
snapshot of the current line without anybody typing; without a snapshot the job starts over as a
new line. Losing one without state costs a restart of that process. A recovery that fails is
tried again after a back-off that grows up to `MOST_BACKOFF_S`; `GIVE_UP_AFTER` in a row that
got nowhere end the supervision. Nothing of a live job is touched before its next incarnation is
claimed, and nothing of a stack that somebody has ended with `turnpoint down`.

Not guaranteed: anything after the death of this process; `turnpoint run` begins again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gym.client import GymClient
from gym.protocol import TurnpointError
from rl import incarnations
from rl.messages import ControllerStatus, Workload
from workers import job_runs, ray_side
from workers.chronicle import Chronicle, Event
from workers.errors import Stopped, WorkerRoomError
from workers.job_sighting import JobSighting
from workers.key_files import read_secret
from workers.mending import Mender
from workers.settings import Settings, load_settings
from workers.stack_parts import GYM_NAMES
from workers.supervision import (
    RAY,
    Adopt,
    Deed,
    End,
    Leave,
    Recover,
    Restart,
    Revive,
    Seen,
    Wait,
    decide,
)
from workers.temporal import connect
from workers.workflow_runs import Shown, is_running

LOOK_EVERY_S = 0.5
ANSWER_LIMIT_S = 2.0
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
GIVE_UP_AFTER = 20
"""Recoveries in a row that got nowhere: some eight minutes of back-off and as much of work."""
STEADY_S = 60.0
"""A job that has lived so long has got somewhere, even if no rollout has finished."""
CLAIM_PATIENCE_S = 120.0
"""For a claimant that is no workflow (another `run`), of which nobody can ask whether it works."""
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
        chronicle: Told what is noticed and done.
        progress: Told each status of the controller.
        phases: Told the phases of a restore.
    """

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        incarnation: int,
        watch: ray_side.JobWatch,
        chronicle: Chronicle,
        progress: Callable[[ControllerStatus], None],
        phases: Shown,
    ) -> None:
        """Supervise nothing yet."""
        self._settings = settings
        self._workload = workload
        self.incarnation = incarnation
        self._watch = watch
        self._chronicle = chronicle
        self._progress = progress
        self._phases = phases
        self._mender = Mender(settings)
        self._recovering: asyncio.Task[None] | None = None
        self._mending: dict[str, asyncio.Task[None]] = {}
        self._in_a_row = 0
        self._alive_since = time.monotonic()
        self._finished = -1
        self._answered_at = self._reached_at = time.monotonic()
        self._claim_seen: tuple[int, float] = (0, 0.0)
        self._to_start: frozenset[str] = frozenset()
        """What a recovery has found gone and has not started yet."""
        record = self._mender.stack.record()
        self._stack_id = record.stack_id if record is not None else None

    @property
    def is_recovering(self) -> bool:
        """Whether the job is being brought back now."""
        return self._recovering is not None and not self._recovering.done()

    async def run(self) -> ControllerStatus:
        """Supervise the job to its end.

        Returns:
            The controller's last status.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            GivenUp: The job cannot be brought back.
        """
        try:
            async with GymClient(read_secret(self._settings)) as gym:
                while True:
                    seen = await self._look(gym)
                    deed = decide(seen)
                    if isinstance(deed, End):
                        return deed.status
                    self._do(deed, seen)
                    await asyncio.sleep(LOOK_EVERY_S)
                    self._collect()
        finally:
            await self._cancel_all()

    # --- looking ------------------------------------------------------------------------------

    async def _look(self, gym: GymClient) -> Seen:
        await self._follow_the_stack()
        answering = await self._answering(gym)
        newest = await asyncio.to_thread(
            incarnations.newest, self._settings.job_config().job_folder
        )
        driven = not self.is_recovering and await self._is_driven(newest)
        sighting = self._sighting()
        now = time.monotonic()
        stack = self._mender.stack
        record = stack.record()
        # Last, and nothing is awaited from here to the decision: what is being started is busy.
        gone = stack.gone() if record is not None and not self._mender.busy else set()
        return Seen(
            incarnation=self.incarnation,
            newest=newest,
            job=sighting,
            gone=frozenset(gone - self._mending.keys() - self._to_start),
            owned=frozenset(p.name for p in record.processes) if record else frozenset(),
            gym=frozenset(GYM_NAMES),
            answering=answering,
            silent_s=now - self._answered_at,
            unreachable_s=now - self._reached_at,
            stopped=record.stopped if record is not None else False,
            claim_driven=driven,
            recovering=self.is_recovering,
        )

    def _sighting(self) -> JobSighting | None:
        """The newest look into Ray, if it began after the job came to life."""
        sighting = self._watch.seen
        if self.is_recovering:  # what is being started does not answer yet
            self._reached_at = self._answered_at = time.monotonic()
        if sighting is None or sighting.at < self._alive_since:
            return None
        if sighting.reachable:
            self._reached_at = max(self._reached_at, sighting.at)
        if sighting.reachable and not sighting.silent:
            self._answered_at = max(self._answered_at, sighting.at)
        if (status := sighting.controller) and status.incarnation == self.incarnation:
            self._saw(status)
        return sighting

    def _saw(self, status: ControllerStatus) -> None:
        self._progress(status)
        lived_s = time.monotonic() - self._alive_since
        if status.finished > self._finished >= 0 or lived_s > STEADY_S:
            self._in_a_row = 0
        self._finished = status.finished

    async def _follow_the_stack(self) -> None:
        """Somebody may have started the stack again, at other addresses."""
        record = self._mender.stack.record()
        if record is None or record.stack_id == self._stack_id:
            return
        self._stack_id = record.stack_id
        state_dir = self._settings.state_dir
        self._settings = load_settings(state_dir=state_dir, job_id=self._settings.job_id)
        self._mender.use(self._settings)
        await self._watch.again(self._settings)

    async def _answering(self, gym: GymClient) -> dict[str, str]:
        """Instance of each Gym server that answers; whether the others live is not told by that."""
        servers = self._settings.job_config().servers
        answers = await asyncio.gather(
            *(
                asyncio.wait_for(gym.capabilities(server.url, server.name), ANSWER_LIMIT_S)
                for server in servers
            ),
            return_exceptions=True,
        )
        found = {}
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, TurnpointError | TimeoutError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[server.name] = answer.instance_id
        return found

    async def _is_driven(self, newest: int) -> bool:
        """Whether whoever claimed the newest incarnation still works on it."""
        if newest <= self.incarnation:
            return False
        if self._claim_seen[0] != newest:
            self._claim_seen = (newest, time.monotonic())
        waited_s = time.monotonic() - self._claim_seen[1]
        owner = incarnations.owner(self._settings.job_config().job_folder, newest)
        workflow_id, run_id = owner.get("workflow_id"), owner.get("run_id")
        if isinstance(workflow_id, str) and isinstance(run_id, str):
            try:
                client = await connect(self._settings)
                return await is_running(client, workflow_id, run_id)
            except WorkerRoomError:
                return True  # Temporal does not answer: it is started again first
        return waited_s < CLAIM_PATIENCE_S

    # --- doing --------------------------------------------------------------------------------

    def _do(self, deed: Deed, seen: Seen) -> None:
        match deed:
            case Leave(reason):
                raise Stopped(reason)
            case Adopt(incarnation):
                self.incarnation = incarnation
                self._alive(f"incarnation {incarnation} lives, started by somebody else")
                self._chronicle.note(Event(ts=time.time(), what="adopted", incarnation=incarnation))
            case Restart(names):
                for name in sorted(names):
                    self._mend(name, self._restart(name))
            case Revive(actors):
                self._mend("actors", self._revive(actors))
            case Recover():
                self._begin_recovery(deed, seen)
            case Wait() | End():
                pass

    def _mend(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._mending:
            work.close()
            return
        self._mending[name] = asyncio.create_task(work)

    async def _restart(self, name: str) -> None:
        """Start a process without state, again and again until it is ready."""
        await self._mended(name, lambda: self._mender.restart(name, grace_s=0))

    async def _revive(self, actors: tuple[str, ...]) -> None:
        await self._mended(
            ", ".join(actors),
            lambda: ray_side.start_stateless(self._settings, self.incarnation),
        )

    async def _mended(self, name: str, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        reason = f"{name} is gone"
        self._chronicle.tell("noticed", f"{reason}: starting it again; the job goes on")
        began, wait_s = time.monotonic(), FIRST_BACKOFF_S
        while True:
            try:
                await start()
                break
            except Stopped:
                raise
            except WorkerRoomError as error:
                self._chronicle.tell(
                    "failed_try", f"{error.code}: {_first_line(error)}; again in {wait_s:g} s"
                )
                await asyncio.sleep(wait_s)
                wait_s = min(MOST_BACKOFF_S, wait_s * 2)
        took_s = time.monotonic() - began
        self._chronicle.tell("restarted", f"{name} runs again after {took_s:.1f} s")
        self._chronicle.note(
            Event(
                ts=time.time(),
                what="restarted",
                reasons=[reason],
                processes=[name],
                incarnation=self.incarnation,
                took_s=took_s,
            )
        )

    def _begin_recovery(self, deed: Recover, seen: Seen) -> None:
        if self._recovering is not None and not self._recovering.done():
            self._recovering.cancel()  # what it waits for will not come
        for task in self._mending.values():
            task.cancel()
        self._mending.clear()
        self._in_a_row += 1
        why = "; ".join(deed.reasons)
        if self._in_a_row > GIVE_UP_AFTER:
            raise GivenUp(f"{GIVE_UP_AFTER} recoveries in a row got nowhere; the last: {why}")
        wait_s = backoff_s(self._in_a_row)
        then = f"in {wait_s:g} s" if wait_s else "now"
        self._chronicle.tell(
            "lost", f"{why}: bringing the job back {then}", reasons=deed.reasons, wait_s=wait_s
        )
        before, self._to_start = self._recovering, seen.gone
        self._recovering = asyncio.create_task(self._recover(deed, seen.gone, wait_s, before))

    async def _recover(
        self,
        deed: Recover,
        gone: frozenset[str],
        wait_s: float,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        await asyncio.sleep(wait_s)
        began = time.monotonic()
        config = self._settings.job_config()
        has_snapshot = await asyncio.to_thread(job_runs.has_snapshot_on_line, config)
        names = set(gone)
        if deed.ray_is_lost and (record := self._mender.stack.record()) is not None:
            names |= {name for name in record.ports if name == RAY}
            names |= {p.name for p in record.processes if p.name.startswith("worker_")}
        if names:
            self._chronicle.tell("starting", f"starting {', '.join(sorted(names))}")
        # With those that have died since: a machine's processes do not end in one instant.
        await self._mender.restart(
            *sorted(names), missing=True, expect_restore=has_snapshot, grace_s=0
        )
        self._to_start = frozenset()
        if deed.ray_is_lost:
            await self._watch.again(self._settings)
        if not has_snapshot:
            self._chronicle.tell(
                "starting_over", "there is no snapshot: starting over, as a new line"
            )
        begun = await job_runs.begin(
            self._settings,
            self._workload,
            fresh=not has_snapshot,
            shown=self._phases,
            replace=True,
            mender=self._mender,
        )
        took_s = time.monotonic() - began
        snapshot = begun.restored.snapshot if begun.restored else None
        self.incarnation = begun.incarnation
        self._finished = -1
        self._alive(
            f"restored {snapshot} as incarnation {begun.incarnation} after {took_s:.1f} s"
            if snapshot
            else f"started over as incarnation {begun.incarnation} after {took_s:.1f} s"
        )
        self._chronicle.note(
            Event(
                ts=time.time(),
                what="restored" if snapshot else "started_over",
                reasons=list(deed.reasons),
                incarnation=begun.incarnation,
                snapshot=snapshot,
                took_s=took_s,
            )
        )

    def _alive(self, text: str) -> None:
        self._alive_since = time.monotonic()
        self._chronicle.tell("alive", text, incarnation=self.incarnation)

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
        self._chronicle.tell("failed_try", f"{error.code}: {_first_line(error)}")
        self._chronicle.note(Event(ts=time.time(), what="failed_try", reasons=[error.code]))
        if error.code in HOPELESS:
            raise GivenUp(f"the job cannot be brought back by itself: {error}")
        if error.code != "superseded":  # then the newest claim was its own: nobody works on it
            self._claim_seen = (self._claimed_by_now(), -math.inf)

    def _claimed_by_now(self) -> int:
        return incarnations.newest(self._settings.job_config().job_folder)

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


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
