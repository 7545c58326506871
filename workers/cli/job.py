"""`turnpoint save`, `restore`, `prune`: the job's three workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich import filesize
from rich.table import Table

from activities.contract import (
    PruneInput,
    PruneResult,
    RestoreInput,
    RestoreResult,
    SaveInput,
    SaveOutcome,
    SaveResult,
)
from workers.cli.options import AsJson, JobOption, StateDir, settings_of_job
from workers.cli.output import EXIT_REFUSED, Output
from workers.cli.progress import ProgressView, restored
from workers.config.settings import Settings
from workers.errors import Interrupted
from workers.job import commands as job_runs


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

    Ctrl-C only stops following: the save goes on; cancel it in the Temporal UI.
    """
    output = Output(as_json)
    settings = settings_of_job(job_id, state_dir)
    given = SaveInput(job_id=settings.job_id, name=name)
    with _naming_workflow(settings) as on_started, ProgressView(output) as view:
        result = asyncio.run(job_runs.save(settings, given, view.on_progress, on_started))
    output.result(result, _saved(result))
    if result.outcome is SaveOutcome.SKIPPED:
        raise typer.Exit(EXIT_REFUSED)


def restore(
    to: Annotated[
        str,
        typer.Option(
            metavar="SNAPSHOT", help="`latest`, a folder (snapshot_000007) or the name of a save."
        ),
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

    A job that is alive is refused (exit code 3) unless --replace: then it ends once the new
    incarnation is claimed, and a local stack's Gym servers are restarted. Restart the Gym servers
    of another fleet with --expect-restore, within restore_wait_s. Ctrl-C only stops following:
    the restore goes on.
    """
    output = Output(as_json)
    settings = settings_of_job(job_id, state_dir)
    given = RestoreInput(job_id=settings.job_id, snapshot=to, strict=strict, replace=replace)
    with _naming_workflow(settings) as on_started, ProgressView(output) as view:
        result = asyncio.run(_restore(settings, given, view, on_started))
    output.line(restored(result))
    output.result(result, _continued(result))


def prune(
    keep_latest_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Periodic snapshots of the current line that stay. [default: as configured]",
            show_default=False,
        ),
    ] = None,
    other_lines: Annotated[
        bool,
        typer.Option("--other-lines", help="Delete the periodic ones of other lines as well."),
    ] = False,
    job_id: JobOption = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Delete old periodic snapshots, by the workflow PruneSnapshots.

    Every save does this by itself for the current line. Snapshots of other lines, left behind by
    the restore of an older one, stay until --other-lines. Named ones always stay, and so does the
    one the job goes on from.
    """
    output = Output(as_json)
    settings = settings_of_job(job_id, state_dir)
    given = PruneInput(
        job_id=settings.job_id,
        keep_latest_k=settings.keep_latest_k if keep_latest_k is None else keep_latest_k,
        other_lines=other_lines,
    )
    with ProgressView(output) as view:
        result = asyncio.run(job_runs.prune(settings, given, view.on_progress))
    output.result(result, _pruned(result))


@contextmanager
def _naming_workflow(settings: Settings) -> Iterator[job_runs.OnStarted]:
    """Name the started workflow in the error of Ctrl-C, if one was started."""
    begun: list[str] = []
    try:
        yield begun.append
    except KeyboardInterrupt:
        if not begun:
            raise
        raise Interrupted(begun[-1], settings.temporal_ui) from None


async def _restore(
    settings: Settings, given: RestoreInput, view: ProgressView, on_started: job_runs.OnStarted
) -> RestoreResult:
    if not given.replace:
        await job_runs.require_no_job(settings)
    return await job_runs.restore(settings, given, view.on_progress, on_started=on_started)


def _saved(result: SaveResult) -> str:
    if result.outcome is SaveOutcome.SKIPPED:
        return f"skipped: {result.reason}"
    pause = f"paused {result.pause_s:.2f} s" if result.pause_s is not None else "pause unknown"
    return (
        f"{result.snapshot}: {result.parked_rollouts} unfinished rollouts, "
        f"{filesize.decimal(result.bytes)}, {pause}"
    )


def _pruned(result: PruneResult) -> str:
    kept = ", ".join(result.kept) or "none"
    return f"deleted: {', '.join(result.removed) or 'none'}; there are: {kept}"


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


COMMANDS = [save, restore, prune]
