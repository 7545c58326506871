"""`turnpoint run`: starts the job and keeps it alive to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from rl.config import Workload
from workers.cli.options import AsJson, JobOption, StateDir, settings_of_job
from workers.cli.outcome import ended, exit_code
from workers.cli.output import EXIT_NOT_REACHABLE, EXIT_TERMINATED, Output
from workers.cli.supervised_run import SupervisedRun
from workers.config.example_rows import example_rows
from workers.supervisor.event_log import Summary

_NOT_SUPERVISED = (
    "the job is not supervised, and not brought back if a process is lost; follow it with "
    "`turnpoint status --follow`"
)
_EXIT_CODE_OF = {"terminated": EXIT_TERMINATED, "stopped": EXIT_NOT_REACHABLE}


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
        bool, typer.Option("--detach", help="Return once the job runs; it is not supervised.")
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

    If a process that holds state is lost, or all of them, the job is restored from its newest
    snapshot; one without state is started again. `turnpoint logs supervisor` shows both. With a
    snapshot the workload is the snapshot's: --rows, --generations, --epochs and --max-inflight do
    not apply. A job that runs already is refused (exit code 3), and so is a second job on the
    stack or cluster of another; one that has finished is left as it is (exit code 0) unless
    --fresh. A job of which every rollout failed ends with exit code 1.

    This command does not start itself again after the loss of its machine: the systemd unit
    docker/turnpoint.service runs `turnpoint up` and `turnpoint run` at boot and after any loss.

    Ctrl-C only ends the supervision: the job goes on. SIGTERM (a preemption notice) makes a last
    save within --grace-s and ends with 143; the stack stays up unless --down.
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
    command = SupervisedRun(settings, workload, output, fresh=fresh, grace_s=grace_s, down=down)
    result = asyncio.run(command.begin_only() if detach else command.to_the_end())
    if not isinstance(result, Summary):
        output.result(result, _NOT_SUPERVISED)
        return
    output.result(result, _sentence(result))
    if code := _EXIT_CODE_OF.get(result.state, exit_code(result)):
        raise typer.Exit(code)


def _sentence(summary: Summary) -> str:
    parts = [ended(summary)]
    if summary.restores:
        parts.append(f"brought back {summary.restores} times")
    if summary.restarts:
        parts.append(f"{summary.restarts} processes restarted")
    return "; ".join([*parts, *(text for text in (summary.reason, summary.next) if text)])


COMMANDS = [run]
