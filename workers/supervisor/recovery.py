"""Brings a lost job back: its processes are started, then the newest snapshot is restored.

Guarantees: without a snapshot on the job's current line it starts over, as a new line. One try is
under way at a time; a further loss begins the next one. The waits between tries that get nowhere
double up to `MOST_BACKOFF_S`, and `GIVE_UP_AFTER` of them in a row end the supervision. Nothing of
a live job is touched before its next incarnation is claimed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gym.protocol import TurnpointError
from rl.config import Workload
from rl.messages import ControllerStatus
from workers.errors import Stopped, WorkerRoomError
from workers.job import commands as job_runs
from workers.job.ray_client import JobWatch
from workers.job.restarts import Restarter
from workers.job.workflows import OnProgress
from workers.stack.process_specs import WORKER_PREFIX
from workers.supervisor.decide import RAY, Recover
from workers.supervisor.event_log import EventLog
from workers.supervisor.observe import Observer

FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
GIVE_UP_AFTER = 20
"""Tries in a row that got nowhere: some eight minutes of back-off and as much of work."""
STEADY_S = 60.0
"""A job that has lived so long has got somewhere, even if no rollout has finished."""
HOPELESS = {"no_snapshot", "dataset_invalid", "other_job", "unauthorized", "invalid_request"}
"""Codes of failures that no repetition mends: a person has to choose."""


class GivenUp(WorkerRoomError):
    """The supervisor cannot bring the job back; the last reason is in the sentence."""

    code = "given_up"


class Recovery:
    """The tries to bring one job back.

    Args:
        workload: What it rolls out if it has to start over.
        watch: Looks at the job in Ray; it follows a Ray that is started again.
        restarter: Starts processes of the stack.
        observer: Knows the settings of the stack as it runs now.
        event_log: Gets what is done.
        on_progress: Called with the phases of a restore.
        on_alive: Called with the incarnation as which the job lives again, and a sentence.
    """

    def __init__(
        self,
        workload: Workload,
        watch: JobWatch,
        restarter: Restarter,
        observer: Observer,
        event_log: EventLog,
        on_progress: OnProgress,
        on_alive: Callable[[int, str], None],
    ) -> None:
        self._workload = workload
        self._watch = watch
        self._restarter = restarter
        self._observer = observer
        self._event_log = event_log
        self._on_progress = on_progress
        self._on_alive = on_alive
        self._task: asyncio.Task[None] | None = None
        self.to_start: frozenset[str] = frozenset()
        """Processes that were found gone and are not started yet."""
        self._reasons: dict[str, None] = {}
        """Reasons for the recovery, in order; more may be lost meanwhile."""
        self._in_a_row = 0
        self._alive_since = time.monotonic()
        self._finished = -1

    @property
    def is_under_way(self) -> bool:
        """True while the job is being brought back now."""
        return self._task is not None and not self._task.done()

    def begin(self, action: Recover, gone: frozenset[str]) -> None:
        """Begin the next try, after its back-off; one that is under way is cancelled.

        Args:
            action: Reasons, and whether Ray has to be started again.
            gone: Processes that are gone.

        Raises:
            GivenUp: Too many tries in a row got nowhere.
        """
        if self._task is not None:
            self._task.cancel()  # what it waits for will not come
        self._in_a_row += 1
        self._reasons |= dict.fromkeys(action.reasons)
        why = "; ".join(action.reasons)
        if self._in_a_row > GIVE_UP_AFTER:
            raise GivenUp(f"{GIVE_UP_AFTER} recoveries in a row got nowhere; the last: {why}")
        wait_s = backoff_s(self._in_a_row)
        then = f"in {wait_s:g} s" if wait_s else "now"
        self._event_log.write(
            "lost", f"{why}: bringing the job back {then}", reasons=action.reasons, wait_s=wait_s
        )
        # What the last one has not started yet is still to be started, and no news.
        self.to_start |= gone
        self._task = asyncio.create_task(
            self._recover(self._task, wait_s, self.to_start, ray_is_lost=action.ray_is_lost)
        )

    def on_well(self) -> None:
        """Forget the losses: the job was only silent, and answers again."""
        self._reasons.clear()

    def on_status(self, status: ControllerStatus) -> None:
        """Take a status of the supervised incarnation: a life that gets somewhere ends the row."""
        lived_s = time.monotonic() - self._alive_since
        # A life that is lost goes on for a while, and may finish rollouts: that is no success.
        if not self._reasons and (status.finished > self._finished >= 0 or lived_s > STEADY_S):
            self._in_a_row = 0
        self._finished = status.finished

    def on_new_life(self, at: float) -> None:
        """The job lives, since this instant of the monotonic clock."""
        self._finished = -1
        self._reasons.clear()
        self._alive_since = at

    def collect(self) -> None:
        """Take the outcome of a try that is over.

        Raises:
            Stopped: The stack was ended with `turnpoint down`.
            GivenUp: The try failed in a way that no repetition mends.
        """
        if self._task is None or not self._task.done():
            return
        task, self._task = self._task, None
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Stopped) or not isinstance(error, WorkerRoomError | TurnpointError):
            raise error
        self.to_start = frozenset()
        self._event_log.write_failed_try(error)
        self._event_log.add("failed_try", reasons=[error.code])
        if error.code in HOPELESS:
            raise GivenUp(f"the job cannot be brought back by itself: {error}")
        if error.code != "superseded":  # then the newest claim is another command's
            self._observer.newest_claim_failed()

    async def cancel(self) -> None:
        """End the try that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _recover(
        self,
        before: asyncio.Task[None] | None,
        wait_s: float,
        gone: frozenset[str],
        *,
        ray_is_lost: bool,
    ) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        await asyncio.sleep(wait_s)
        began = time.monotonic()
        with_ray = self._ray_and_workers() if ray_is_lost else set()
        if names := gone | with_ray:
            self._event_log.write("starting", f"starting {', '.join(sorted(names))}")
        # All that is missing by then: a machine's processes do not end in one instant, and another
        # command may have started some.
        await self._restarter.restart(
            *sorted(with_ray), missing=True, expect_restore=await self._has_snapshot(), grace_s=0
        )
        self.to_start = frozenset()
        if ray_is_lost:
            await self._watch.again(self._observer.settings)
        # Asked again: the save that ran when the job was lost may have published meanwhile.
        fresh = not await self._has_snapshot()
        if fresh:
            self._event_log.write(
                "starting_over", "there is no snapshot: starting over, as a new line"
            )
        begun = await job_runs.begin(
            self._observer.settings,
            self._workload,
            fresh=fresh,
            on_progress=self._on_progress,
            replace=True,
            restarter=self._restarter,
        )
        took_s = time.monotonic() - began
        snapshot = begun.restored.snapshot if begun.restored else None
        self._event_log.add(
            "restored" if snapshot else "started_over",
            reasons=list(self._reasons),
            incarnation=begun.incarnation,
            snapshot=snapshot,
            took_s=took_s,
        )
        done = f"restored {snapshot}" if snapshot else "started over"
        self._on_alive(
            begun.incarnation, f"{done} as incarnation {begun.incarnation} after {took_s:.1f} s"
        )

    async def _has_snapshot(self) -> bool:
        config = self._observer.settings.job_config()
        return await asyncio.to_thread(job_runs.has_snapshot_on_line, config)

    def _ray_and_workers(self) -> set[str]:
        """Ray and the workers: their connection is to the Ray that is lost."""
        record = self._restarter.stack.record()
        if record is None:
            return set()
        workers = {p.name for p in record.processes if p.name.startswith(WORKER_PREFIX)}
        return workers | ({RAY} & record.ports.keys())


def backoff_s(tries: int) -> float:
    """Seconds before the n-th try in a row; the first comes at once."""
    if tries <= 1:
        return 0.0
    return min(MOST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (tries - 2))
