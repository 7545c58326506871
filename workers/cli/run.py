"""`turnpoint run`: starts the job and keeps it alive to its end."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from rl.messages import ControllerStatus, Workload
from rl.snapshots.one_job import refuse_other_job, stands_in_the_way
from workers.cli.outcome import all_failed, ended, next_step
from workers.cli.output import EXIT_FAILED, EXIT_NOT_REACHABLE, EXIT_TERMINATED, Output
from workers.cli.phases import Phases, restored
from workers.cli.stack import AsJson, JobOption, StateDir, settings_of_job
from workers.config.example_rows import example_rows
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

FIRST_LOOK_S = 60.0
"""The process that looks into Ray imports torch first: 3 to 10 s on two cores."""
DOWN_S = 8.0
"""Of the grace period, what `--down` needs: Ray gets 5 s for its SIGTERM."""
BUSY_PAUSE_S = 0.2
_NOT_SUPERVISED = (
    "nobody brings it back if a process is lost; follow it with `turnpoint status --follow`"
)


def run(
    rows: Annotated[
        Path | None,
        typer.Option(help="JSONL of NeMo Gym rows. [default: its example rows]", exists=True),
    ] = None,
    generations: Annotated[int, typer.Option(min=1, help="Rollouts of each row.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the rows.")] = 1,
    max_inflight: Annotated[int, typer.Option(min=1, help="Rollouts under way at once.")] = 64,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new line even if there are snapshots.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the job runs; nobody supervises it.")
    ] = False,
    grace_s: Annotated[
        float,
        typer.Option(min=0, help="After SIGTERM: seconds for a last save. 0: none."),
    ] = 25.0,
    down: Annotated[
        bool, typer.Option("--down", help="After SIGTERM, stop the stack too.")
    ] = False,
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Run the job: from its newest snapshot if it has one, else from the start; supervise it.

    When a process that holds state is lost, or all of them, the job is restored from its newest
    snapshot; one without state is started again. What is noticed and done is in
    `turnpoint logs supervisor`. With a snapshot the workload is the snapshot's: --rows and its
    companions do not apply. A job that runs already is refused (exit code 3), and so is a second
    job on the stack or cluster of another; one that has finished is left as it is (exit code 0)
    unless --fresh. A job of which every rollout failed ends with exit code 1.

    Nothing starts this command again when it is lost with the machine: docker/turnpoint.service,
    a systemd unit, runs `turnpoint up` and `turnpoint run` at boot and after any loss.

    Ctrl-C ends the supervision, not the job. SIGTERM (a preemption notice) makes a last save
    within --grace-s and ends with 143; the stack stays up unless --down.
    """
    output = Output(as_json)
    settings = settings_of_job(job_id, state_dir)
    settings.require_fleet()
    workload = Workload(
        dataset=(rows or example_rows()).absolute(),
        generations=generations,
        epochs=epochs,
        max_inflight=max_inflight,
    )
    command = _Run(settings, workload, output, fresh=fresh, grace_s=grace_s, down=down)
    if detach:
        begun = asyncio.run(command.begin_only())
        output.result(begun, _sentence(begun) if isinstance(begun, Summary) else _NOT_SUPERVISED)
        if isinstance(begun, Summary) and all_failed(begun.finished, begun.failed):
            raise typer.Exit(EXIT_FAILED)
        return
    summary = asyncio.run(command.to_the_end())
    output.result(summary, _sentence(summary))
    if summary.state == "terminated":
        raise typer.Exit(EXIT_TERMINATED)
    if summary.state == "stopped":
        raise typer.Exit(EXIT_NOT_REACHABLE)
    if summary.state != "finished" or all_failed(summary.finished, summary.failed):
        raise typer.Exit(EXIT_FAILED)


class _Run:
    """One run of the command."""

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
        """Start the job; it goes on by itself. A summary of one that has finished already."""
        with Phases(self._output) as phases:
            try:
                async with JobWatch(self._settings) as watch:
                    return await self._begin(watch, phases)
            except FinishedAlready as error:
                return self._left_as_it_is(error)

    async def to_the_end(self) -> Summary:
        """Start the job and supervise it, until its end or a SIGTERM."""
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        with Phases(self._output) as phases:
            supervising = asyncio.create_task(self._supervise(phases))
            notice = asyncio.create_task(terminated.wait())
            try:
                await asyncio.wait({supervising, notice}, return_when=asyncio.FIRST_COMPLETED)
                if supervising.done():
                    return self._ended(supervising)
                can_save = self._supervisor is not None and not self._supervisor.is_recovering
                self._let_go()
                supervising.cancel()
                await asyncio.gather(supervising, return_exceptions=True)
                return await self._terminated(phases, can_save=can_save)
            finally:
                for task in (supervising, notice):
                    task.cancel()
                await asyncio.gather(supervising, notice, return_exceptions=True)

    async def _begin(self, watch: JobWatch, phases: Phases) -> job_runs.Begun:
        try:
            seen = await watch.first(FIRST_LOOK_S)
        except TimeoutError:
            raise NotRunning(
                f"no look into Ray within {FIRST_LOOK_S:g} s: `turnpoint logs ray_child`"
            ) from None
        if not seen.reachable:
            raise NotRunning("no Ray cluster answers: start the stack with `turnpoint up`")
        refuse_other_job(self._settings.job_id, seen.other_job)
        now = seen.controller
        if now is not None and now.state == "finished" and not self._fresh:
            self._last = now
            raise FinishedAlready(now.incarnation)
        folder = self._settings.snapshot_place().job_folder
        if seen.silent or (now is not None and stands_in_the_way(folder, now)):
            which = f" as incarnation {now.incarnation}" if now is not None else ""
            raise Refused(
                f"job {self._settings.job_id} runs already{which}; follow it with `turnpoint "
                "status --follow`, replace it with `turnpoint restore --replace`"
            )
        begun = await job_runs.begin(
            self._settings,
            self._workload,
            fresh=self._fresh,
            on_progress=phases.show,
            restarter=self._restarter,
        )
        if begun.restored is not None:
            self._output.line(restored(begun.restored))
        self._output.line(f"job {self._settings.job_id} runs as incarnation {begun.incarnation}")
        return begun

    async def _supervise(self, phases: Phases) -> ControllerStatus:
        def progress(now: ControllerStatus) -> None:
            self._last = now
            phases.job(now)

        async with JobWatch(self._settings) as watch:
            begun = await self._begin(watch, phases)
            self._supervisor = Supervisor(
                self._settings,
                self._workload,
                begun.incarnation,
                watch,
                self._event_log,
                progress,
                phases.show,
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
            return self._left_as_it_is(error)
        except Stopped as error:
            return self._summary("stopped", str(error))
        except GivenUp as error:
            return self._summary("given_up", str(error))
        return self._summary(self._last.state, self._last.reason)

    async def _terminated(self, phases: Phases, *, can_save: bool) -> Summary:
        """SIGTERM: save once more if there is something to save, and say what came of it."""
        save_s = max(0.0, self._grace_s - (DOWN_S if self._down else 0.0))
        self._event_log.write("sigterm", f"SIGTERM: a last save within {save_s:g} s")
        if can_save:
            # The stack may have been started again since, at other addresses.
            now = self._supervisor.settings if self._supervisor else self._settings
            saved = await last_save(now, save_s, phases.show)
        else:
            saved = LastSave(outcome="none", reason="the job was not running at that moment")
        told = saved.outcome.replace("_", " ")
        self._event_log.write(
            "last_save",
            f"last save: {told}"
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

    def _let_go(self) -> None:
        """A process that is being started must not keep this one beyond the grace period."""
        for restarter in (self._restarter, self._supervisor):
            if restarter is not None:
                restarter.let_go()

    async def _stop_the_stack(self) -> None:
        give_up = time.monotonic() + DOWN_S
        while True:
            try:
                ended = await asyncio.to_thread(Stack(self._settings).down)
            except StackBusy as error:
                # What was being started for the job lets go of it in an instant.
                if time.monotonic() > give_up:
                    self._event_log.write("left_up", f"the stack stays up: {error}")
                    return
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                self._event_log.write("down", f"the stack is stopped ({ended} processes)")
                return

    def _left_as_it_is(self, error: FinishedAlready) -> Summary:
        return self._summary("finished", str(error)).model_copy(update={"code": error.code})

    def _summary(self, state: str, reason: str | None, saved: LastSave | None = None) -> Summary:
        last, event_log = self._last, self._event_log
        incarnation = last.incarnation if last is not None else 0
        if self._supervisor is not None:
            incarnation = self._supervisor.incarnation
        return Summary(
            job_id=self._settings.job_id,
            incarnation=incarnation,
            state=state,
            reason=reason,
            rollouts_total=last.rollouts_total if last else 0,
            finished=last.finished if last else 0,
            failed=last.failed if last else 0,
            failures=last.failures if last else {},
            next=next_step(last.failed if last else 0, self._settings),
            restores=event_log.restores,
            restarts=event_log.restarts,
            reasons=event_log.reasons,
            events=event_log.events,
            last_save=saved,
        )


def _sentence(summary: Summary) -> str:
    parts = [ended(summary.state, summary.finished, summary.failed, summary.failures)]
    if summary.restores:
        parts.append(f"brought back {summary.restores} times")
    if summary.restarts:
        parts.append(f"{summary.restarts} processes restarted")
    if summary.reason:
        parts.append(summary.reason)
    if summary.next:
        parts.append(summary.next)
    return "; ".join(parts)


COMMANDS = [run]
