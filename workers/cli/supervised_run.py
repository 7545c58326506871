"""One `turnpoint run`: the start of the job, its supervision, its end or a SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import time

from rl.config import Workload
from rl.messages import ControllerStatus
from rl.snapshots.one_job import blocks_start, require_no_other_job
from workers.cli.outcome import next_step
from workers.cli.output import Output
from workers.cli.progress import ProgressView, restored
from workers.config.settings import Settings
from workers.errors import FinishedAlready, NotRunning, Refused, StackBusy, Stopped
from workers.job import commands as job_runs
from workers.job.ray_client import JobWatch
from workers.job.restarts import Restarter
from workers.stack.stack import Stack
from workers.supervisor.event_log import EventLog, LastSave, Summary
from workers.supervisor.last_save import last_save
from workers.supervisor.recovery import GivenUp
from workers.supervisor.supervisor import Supervisor

FIRST_LOOK_TIMEOUT_S = 60.0
"""The process that looks into Ray imports it first: seconds, or more on busy cores."""
DOWN_TIMEOUT_S = 8.0
"""Share of the grace period that `--down` needs: Ray gets 5 s for its SIGTERM."""
BUSY_PAUSE_S = 0.2


class SupervisedRun:
    """One run of the command.

    Args:
        settings: Of the job and its stack.
        workload: The rollouts of a fresh start.
        output: Of the command.
        fresh: Start a new line even if there are snapshots.
        grace_s: Seconds for a last save after SIGTERM; 0: none.
        down: Stop the stack after SIGTERM.
    """

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        output: Output,
        *,
        fresh: bool,
        grace_s: float,
        down: bool,
    ) -> None:
        self._settings = settings
        self._workload = workload
        self._output = output
        self._fresh = fresh
        self._grace_s = grace_s
        self._down = down
        self._event_log = EventLog(settings.state_dir / "logs", output.line)
        self._last: ControllerStatus | None = None
        self._restarter = Restarter(settings)
        self._supervisor: Supervisor | None = None

    async def begin_only(self) -> job_runs.Begun | Summary:
        """Start the job without supervision.

        Returns:
            How it began, or the summary of a job that has finished before.
        """
        with ProgressView(self._output) as view:
            try:
                async with JobWatch(self._settings) as watch:
                    return await self._begin(watch, view)
            except FinishedAlready as error:
                return self._finished_already(error)

    async def to_the_end(self) -> Summary:
        """Start the job and supervise it, until its end or a SIGTERM."""
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        with ProgressView(self._output) as view:
            supervising = asyncio.create_task(self._supervise(view))
            notice = asyncio.create_task(terminated.wait())
            try:
                await asyncio.wait({supervising, notice}, return_when=asyncio.FIRST_COMPLETED)
                if supervising.done():
                    return self._ended(supervising)
                can_save = self._supervisor is not None and not self._supervisor.is_recovering
                # A process that is being started must not keep this one beyond the grace period.
                self._restarter.let_go()
                if self._supervisor is not None:
                    self._supervisor.let_go()
                supervising.cancel()
                await asyncio.gather(supervising, return_exceptions=True)
                return await self._terminated(view, can_save=can_save)
            finally:
                for task in (supervising, notice):
                    task.cancel()
                await asyncio.gather(supervising, notice, return_exceptions=True)

    async def _begin(self, watch: JobWatch, view: ProgressView) -> job_runs.Begun:
        await self._require_startable(watch)
        begun = await job_runs.begin(
            self._settings,
            self._workload,
            fresh=self._fresh,
            on_progress=view.on_progress,
            restarter=self._restarter,
        )
        if begun.restored is not None:
            self._output.line(restored(begun.restored))
        self._output.line(f"job {self._settings.job_id} runs as incarnation {begun.incarnation}")
        return begun

    async def _require_startable(self, watch: JobWatch) -> None:
        try:
            seen = await watch.first(FIRST_LOOK_TIMEOUT_S)
        except TimeoutError:
            raise NotRunning(
                f"no look into Ray within {FIRST_LOOK_TIMEOUT_S:g} s: `turnpoint logs ray_child`"
            ) from None
        if not seen.reachable:
            raise NotRunning("no Ray cluster answers: start the stack with `turnpoint up`")
        require_no_other_job(self._settings.job_id, seen.other_job)
        now = seen.controller
        if now is not None and now.state == "finished" and not self._fresh:
            self._last = now
            raise FinishedAlready(now.incarnation)
        folder = self._settings.snapshot_place().job_folder
        if seen.silent or (now is not None and blocks_start(folder, now)):
            which = f" as incarnation {now.incarnation}" if now is not None else ""
            raise Refused(
                f"job {self._settings.job_id} runs already{which}; follow it with `turnpoint "
                "status --follow`, replace it with `turnpoint restore --replace`"
            )

    async def _supervise(self, view: ProgressView) -> ControllerStatus:
        def on_status(now: ControllerStatus) -> None:
            self._last = now
            view.on_status(now)

        async with JobWatch(self._settings) as watch:
            begun = await self._begin(watch, view)
            self._supervisor = Supervisor(
                self._settings,
                self._workload,
                begun.incarnation,
                watch,
                self._event_log,
                on_status,
                view.on_progress,
            )
            self._event_log.write(
                "supervising",
                "supervising it; `turnpoint logs supervisor` keeps what happens",
                incarnation=begun.incarnation,
            )
            return await self._supervisor.run()

    # --- its end ------------------------------------------------------------------------------

    def _ended(self, supervising: asyncio.Task[ControllerStatus]) -> Summary:
        try:
            self._last = supervising.result()
        except FinishedAlready as error:
            return self._finished_already(error)
        except Stopped as error:
            return self._summary("stopped", str(error))
        except GivenUp as error:
            return self._summary("given_up", str(error))
        return self._summary(self._last.state, self._last.reason)

    async def _terminated(self, view: ProgressView, *, can_save: bool) -> Summary:
        """After SIGTERM: save once more if the job runs, and report the outcome."""
        timeout_s = max(0.0, self._grace_s - (DOWN_TIMEOUT_S if self._down else 0.0))
        self._event_log.write("sigterm", f"SIGTERM: a last save within {timeout_s:g} s")
        if can_save:
            # The stack may have been started again since, at other addresses.
            now = self._supervisor.settings if self._supervisor else self._settings
            saved = await last_save(now, timeout_s, view.on_progress)
        else:
            saved = LastSave(outcome="none", reason="the job was not running at that moment")
        self._event_log.write(
            "last_save",
            f"last save: {saved.outcome.replace('_', ' ')}"
            + (f", {saved.snapshot}" if saved.snapshot else "")
            + (f" ({saved.reason})" if saved.reason else ""),
            outcome=saved.outcome,
            snapshot=saved.snapshot,
        )
        if self._down:
            await self._stop_the_stack()
        else:
            self._event_log.write(
                "left_up", "the stack and the job go on; `turnpoint down` ends them"
            )
        return self._summary("terminated", "SIGTERM", saved)

    async def _stop_the_stack(self) -> None:
        deadline = time.monotonic() + DOWN_TIMEOUT_S
        while True:
            try:
                ended = await asyncio.to_thread(Stack(self._settings).down)
            except StackBusy as error:
                # A start that was let go of frees the stack in an instant.
                if time.monotonic() > deadline:
                    self._event_log.write("left_up", f"the stack stays up: {error}")
                    return
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                self._event_log.write("down", f"the stack is stopped ({ended} processes)")
                return

    def _finished_already(self, error: FinishedAlready) -> Summary:
        return self._summary("finished", str(error)).model_copy(update={"code": error.code})

    def _summary(self, state: str, reason: str | None, saved: LastSave | None = None) -> Summary:
        last, event_log = self._last, self._event_log
        incarnation = last.incarnation if last is not None else 0
        if self._supervisor is not None:
            incarnation = self._supervisor.incarnation
        counts = {"rollouts_total", "finished", "failed", "failures"}
        return Summary(
            job_id=self._settings.job_id,
            incarnation=incarnation,
            state=state,
            reason=reason,
            **(last.model_dump(include=counts) if last is not None else {}),
            next=next_step(last.failed if last is not None else 0, self._settings),
            restores=event_log.restores,
            restarts=event_log.restarts,
            reasons=event_log.reasons,
            events=event_log.events,
            last_save=saved,
        )
