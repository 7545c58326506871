"""`turnpoint run`, `save`, `restore`: the job and its two workflows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from activities.contract import (
    Progress,
    RestoreInput,
    RestoreResult,
    SaveInput,
    SaveOutcome,
    SaveResult,
)
from rl.messages import ControllerStatus, Workload
from workers import job_runs
from workers.cli_output import EXIT_FAILED, EXIT_REFUSED, Output
from workers.cli_stack import AsJson, JobOption, StateDir
from workers.example_rows import example_rows
from workers.settings import Settings, load_settings


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
        bool, typer.Option("--detach", help="Return once the job runs; do not follow it.")
    ] = False,
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Run the job: from its newest snapshot if it has one, else from the start; follow it.

    Ctrl-C ends the following, not the job. A job that runs already is refused (exit code 3).
    With a snapshot the workload is the snapshot's: --rows and its companions do not apply.
    """
    output = Output(as_json)
    settings = load_settings(job_id=job_id, state_dir=state_dir)
    workload = Workload(
        dataset=(rows or example_rows()).absolute(),
        generations=generations,
        epochs=epochs,
        max_inflight=max_inflight,
    )
    with Phases(output) as phases:
        begun = asyncio.run(job_runs.begin(settings, workload, fresh=fresh, shown=phases.show))
    if begun.restored is not None:
        output.line(_restored(begun.restored))
    output.line(f"job {settings.job_id} runs as incarnation {begun.incarnation}")
    if detach:
        output.result(begun)
        return
    end = _follow_to_the_end(settings, output)
    output.result(end, f"{end.state}: {end.finished} finished, {end.failed} failed")
    if end.state != "finished":
        raise typer.Exit(EXIT_FAILED)


def save(
    name: Annotated[
        str | None,
        typer.Option(help="Name of the snapshot: it is never pruned.", show_default=False),
    ] = None,
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Save a snapshot of the running job, by the workflow SaveSnapshot.

    Ctrl-C ends the looking on, not the save; cancel it in the Temporal UI.
    """
    output = Output(as_json)
    settings = load_settings(job_id=job_id, state_dir=state_dir)
    given = SaveInput(job_id=settings.job_id, name=name)
    with Phases(output) as phases:
        result = asyncio.run(job_runs.save(settings, given, phases.show))
    output.result(result, _saved(result))
    if result.outcome is SaveOutcome.SKIPPED:
        raise typer.Exit(EXIT_REFUSED)


def restore(
    snapshot: Annotated[
        str, typer.Argument(help="`latest`, a folder (snapshot_000007) or the name of a save.")
    ] = "latest",
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail rather than take the next older snapshot.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop the job first if it is alive.")
    ] = False,
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring the job back from a snapshot, by the workflow RestoreSnapshot.

    A job that is alive is refused (exit code 3) unless --replace. Ctrl-C ends the looking on.
    """
    output = Output(as_json)
    settings = load_settings(job_id=job_id, state_dir=state_dir)
    given = RestoreInput(job_id=settings.job_id, snapshot=snapshot, strict=strict, replace=replace)
    with Phases(output) as phases:
        result = asyncio.run(job_runs.restore(settings, given, phases.show))
    output.line(_restored(result))
    output.result(result, _continued(result))


class Phases:
    """Shows the phases of a workflow on the terminal while it runs."""

    def __init__(self, output: Output) -> None:
        """Nothing is shown yet."""
        self._output = output
        self._status = output.waiting("starting")
        self._printed = 0

    def __enter__(self) -> Phases:
        """Begin to show."""
        self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the changing line away."""
        self._status.stop()

    def show(self, progress: Progress) -> None:
        """Print each finished phase once, with counts; the running one stays below."""
        for report in progress.done[self._printed :]:
            parts = [f"{report.phase}: {report.ms:.0f} ms"]
            for server in report.servers:
                counts = server.counts.model_dump(exclude_defaults=True)
                told = [f"{count} {what}" for what, count in counts.items()]
                parts.append(" ".join([server.server, f"{server.ms:.0f} ms", *told]))
            self._output.line(", ".join(parts))
        self._printed = len(progress.done)
        self._status.update(progress.phase or "waiting")


def _follow_to_the_end(settings: Settings, output: Output) -> ControllerStatus:
    printed = ""
    with output.waiting("running") as status:

        def shown(now: ControllerStatus) -> None:
            nonlocal printed
            line = (
                f"{now.finished} of {now.rollouts_total} finished, {now.running} running"
                + (f", {now.failed} failed" if now.failed else "")
                + ("" if now.admission_open else ", paused by a save")
            )
            status.update(line)
            if line != printed and not output.is_terminal:
                output.line(line)
            printed = line

        return asyncio.run(job_runs.follow_job(settings, shown))


def _saved(result: SaveResult) -> str:
    if result.outcome is SaveOutcome.SKIPPED:
        return f"skipped: {result.reason}"
    pause = f"paused {result.pause_s:.2f} s" if result.pause_s is not None else "pause unknown"
    return (
        f"{result.snapshot}: {result.parked_rollouts} unfinished rollouts, "
        f"{result.bytes} bytes, {pause}"
    )


def _restored(result: RestoreResult) -> str:
    return (
        f"restored {result.snapshot} as incarnation {result.incarnation}: "
        f"{len(result.continued)} unfinished rollouts, {result.finished_rollouts} finished"
    )


def _continued(result: RestoreResult) -> Table:
    table = Table("rollout", "run", "goes on")
    for rollout in result.continued:
        if rollout.restarted_because:
            where = f"starts over: {rollout.restarted_because}"
        elif rollout.last_committed_model_call_id:
            where = f"continues after {rollout.last_committed_model_call_id}"
        else:
            where = "from its start"
        table.add_row(rollout.rollout_id, str(rollout.attempt_index), where)
    return table


COMMANDS = [run, save, restore]
