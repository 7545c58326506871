"""`turnpoint up`, `down`, `status`, `logs`, `doctor`: the local stack."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from workers.cli.doctor import examine
from workers.cli.options import AsJson, JobOption, StateDir
from workers.cli.outcome import ended, exit_code, next_step
from workers.cli.output import EXIT_FAILED, EXIT_NOT_REACHABLE, Output
from workers.cli.progress import ProgressView
from workers.config.settings import Settings, load_settings
from workers.errors import NotRunning, stack_is_down
from workers.job.follow import follow_to_the_end
from workers.job.status import look_at_job
from workers.stack.processes import log_tail
from workers.stack.record import StackRecord
from workers.stack.stack import Stack
from workers.supervisor.event_log import LOG_NAME

LOG_LOOK_EVERY_S = 0.2


def up(
    policy: Annotated[
        str | None,
        typer.Option(
            help="`vllm`, `scripted`, or the URL of one that runs. [default: vllm]",
            show_default=False,
        ),
    ] = None,
    job_id: JobOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Gym servers start for a new line, not for a restore.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Start Temporal, Ray, the policy, the Gym servers and two workers; wait until ready.

    Everything listens on loopback. Configuration: flags, TURNPOINT_<KEY>, turnpoint.toml.
    If one process does not get ready, all that were started are stopped.
    """
    output = Output(as_json)
    settings = load_settings(attach=False, policy=policy, job_id=job_id, state_dir=state_dir)
    began = time.monotonic()
    record = Stack(settings, output.line).up(fresh=fresh)
    output.line(f"up after {time.monotonic() - began:.1f} s")
    output.result(_shown_record(record), _processes_table(record, {}))


def down(
    kill: Annotated[
        bool, typer.Option("--kill", help="Simulate a crash of the machine: SIGKILL.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop every process of the stack, and no other.

    Turns since the newest snapshot are lost: run `turnpoint save` first. Snapshots and Temporal's
    history stay.
    """
    output = Output(as_json)
    settings = load_settings(state_dir=state_dir)
    ended = Stack(settings, output.line).down(kill=kill)
    output.result({"ended": ended}, f"{ended} processes ended" if ended else "nothing was running")


def status(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the job to its end.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the stack's processes, the Gym servers' phases and where the job stands.

    Exit code 4 if a process of the stack is not running. With --follow only the job counts: 0
    when it has finished, 1 if it or every rollout of it has failed, 4 if it is gone and is not
    brought back within restore_wait_s; the result is the controller's last status. Ctrl-C only
    stops following: the job goes on.
    """
    output = Output(as_json)
    settings = load_settings(state_dir=state_dir)
    if follow:
        _follow_job(settings, output)
        return
    stack = Stack(settings)
    running = stack.status()
    record = stack.record()
    assert record is not None  # status() has read it
    up, down = any(running.values()), stack_is_down(settings.state_dir)
    # Without a cluster that answers there is no controller to ask.
    view = asyncio.run(
        look_at_job(settings, with_controller=running.get("ray", up), with_servers=up)
    )
    body = {**_shown_record(record), "running": running, "job": view.model_dump(mode="json")}
    output.result(body, _processes_table(record, running) if up else str(down))
    output.line(view.sentence())
    for name, problem in view.problems.items():
        output.line(f"{name}: {problem}")
    if not running or not all(running.values()):
        raise typer.Exit(EXIT_NOT_REACHABLE)


def logs(
    name: Annotated[str, typer.Argument(help="A process of the stack, e.g. counter, worker_1.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines too.")] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of one process of the stack."""
    output = Output(as_json)
    settings = load_settings(state_dir=state_dir)
    stack = Stack(settings)
    record = stack.record()
    folder = settings.state_dir / "logs"
    log = folder / f"{name}.log"
    if not log.is_file():
        if name == LOG_NAME:
            raise NotRunning(
                "the job was not supervised here: `turnpoint run` without --detach supervises it "
                "and keeps this log"
            )
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log"))) or "none yet"
        raise typer.BadParameter(f"no log of {name!r}; there are: {known}")
    tail = log_tail(log, lines)
    if as_json:
        output.result({"name": name, "path": str(log), "lines": tail.splitlines()})
        return
    print(tail)
    if follow and record is not None:
        _follow_log(log)


def doctor(state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Check this environment: versions, packages, space. Nothing is started or changed."""
    output = Output(as_json)
    findings = examine(load_settings(state_dir=state_dir))
    table = Table("check", "problem")
    for finding in findings:
        table.add_row(finding.check, finding.problem or "none")
    output.result({finding.check: finding.problem for finding in findings}, table)
    if any(finding.problem for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _follow_job(settings: Settings, output: Output) -> None:
    settings.require_fleet()
    with ProgressView(output) as view:
        end = asyncio.run(follow_to_the_end(settings, view.on_status, view.on_message))
    body, sentence = end.model_dump(mode="json"), ended(end)
    if (look := next_step(end.failed, settings)) is not None:
        body["next"] = look
        sentence += f"; {look}"
    output.result(body, sentence)
    if code := exit_code(end):
        raise typer.Exit(code)


def _follow_log(log: Path) -> None:
    with log.open(errors="replace") as file:
        file.seek(0, os.SEEK_END)
        while True:
            if line := file.readline():
                print(line, end="", flush=True)
            else:
                time.sleep(LOG_LOOK_EVERY_S)


def _shown_record(record: StackRecord) -> dict[str, Any]:
    shown = {"processes", "ports", "ray_address", "temporal_ui", "expect_restore", "stack_id"}
    return record.model_dump(mode="json", include=shown)


def _processes_table(record: StackRecord, running: dict[str, bool]) -> Table:
    table = Table("process", "pid", "state", "url", title=record.temporal_ui)
    for process in record.processes:
        state = "running" if running.get(process.name, True) else "ended"
        table.add_row(process.name, str(process.pid), state, process.url or "")
    return table


COMMANDS = [up, down, status, logs, doctor]
