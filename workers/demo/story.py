"""`make demo`: a job is saved, everything is killed, everything is started again, it goes on.

NeMo Gym's five example rows, two rollouts each, on vLLM with a tiny model (`DEMO_POLICY=scripted`
works without vLLM). It ends with a table and `build/demo/report.json`, measured by
`workers.demo.report`; `KEEP=1` leaves the stack up and prints the address of the Temporal UI.

Guarantees: exit code 0 only if every unfinished rollout went on, no mutation was repeated and
every rollout is in the training rows once. Nothing is left running after a success, a failure or
Ctrl-C, unless `KEEP=1`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from activities.contract import SaveResult
from rl.messages import ControllerStatus
from workers.cli.output import flush
from workers.config.example_rows import example_rows
from workers.config.settings import Settings, load_settings
from workers.demo.mutations import mutations
from workers.demo.report import Continued, Report, measure
from workers.errors import ProcessFailed, WorkerRoomError
from workers.job.follow import follow_to_the_end
from workers.job.status import use_ray_of
from workers.stack.policy import FLAGS, MAX_STEPS
from workers.stack.stack import Stack, settings_of

FOLDER = Path("build/demo")
GENERATIONS = 2
TURNS_BEFORE_SAVE = 2
OPTIONS = {
    # Also for the scripted policy: its rollouts are as long as those of vLLM.
    **FLAGS["vllm"],
    # A slow environment: most rollouts are in the middle when the save comes.
    "counter": {"tool-delay-s": "1.5"},
}
TURN_TIMEOUT_S = 120.0
"""For the turns that the story waits for; vLLM on two cores makes one in a few seconds."""
END_TIMEOUT_S = 180.0
"""From the restore to the last row; a minute on two quiet cores."""
_LOOK_EVERY_S = 0.2

screen = Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Run the demo; the exit code is 0 if the figures are as they should be."""
    code = 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, too
    try:
        code = 0 if _run(os.environ.get("DEMO_POLICY") or "vllm", _keep()) else 1
    except WorkerRoomError as error:
        screen.print(f"demo: {error}", style="red", markup=False)
    except TimeoutError:
        screen.print(f"demo: the job did not end within {END_TIMEOUT_S:.0f} s", style="red")
    except KeyboardInterrupt:
        screen.print("demo: interrupted; everything was stopped", style="red")
    flush()
    os._exit(code)  # as in workers.cli.app: the interpreter's shutdown can abort


def _keep() -> bool:
    return os.environ.get("KEEP", "") not in ("", "0")


def _run(policy: str, keep: bool) -> bool:
    settings = _clean_start(policy)
    stack = Stack(settings, lambda line: screen.print(f"  {line}", markup=False))
    try:
        return _story(stack)
    finally:
        record = stack.record()
        if keep and record is not None:
            screen.print(f"left up, as KEEP asks: Temporal UI at {record.temporal_ui}")
            screen.print(f"end it with: turnpoint down --state-dir {settings.state_dir}")
        else:
            stack.down(kill=True)


def _clean_start(policy: str) -> Settings:
    state = (FOLDER / "state").absolute()
    Stack(load_settings(attach=False, state_dir=state)).down(kill=True)
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    return load_settings(
        attach=False, state_dir=state, job_id="demo", policy=policy, options=OPTIONS
    )


def _story(stack: Stack) -> bool:
    _chapter("1. Start Temporal, Ray, the policy, the Gym servers and two workers")
    settings = settings_of(stack.up())
    rows = example_rows()
    expected = len(rows.read_text().splitlines()) * GENERATIONS

    _chapter(f"2. Run {expected} rollouts of {MAX_STEPS} turns")
    run = _begin(settings, "run", "--detach", "--generations", str(GENERATIONS))
    _until(
        f"each rollout has finished {TURNS_BEFORE_SAVE} turns",
        lambda: _with_turns(settings, TURNS_BEFORE_SAVE) >= expected or _has_failed(run),
    )

    _chapter("3. Save")
    saved = SaveResult.model_validate(_answer(_begin(settings, "save")))
    before = len(mutations(settings))
    screen.print(
        f"  {saved.snapshot}: {saved.parked_rollouts} unfinished, paused {saved.pause_s:.2f} s"
    )
    _until("the rollouts go on", lambda: len(mutations(settings)) > before)

    _chapter("4. SIGKILL everything, Temporal and Ray included")
    _answer(run)
    screen.print(f"  {stack.down(kill=True)} processes killed")

    _chapter("5. Start everything again, and restore")
    settings = settings_of(stack.up())
    _answer(_begin(settings, "restore"))

    _chapter("6. Follow the job to its end")
    use_ray_of(settings)
    end, report, continued = asyncio.run(
        asyncio.wait_for(_to_the_end(settings, saved, expected), END_TIMEOUT_S)
    )
    (FOLDER / "report.json").write_text(report.model_dump_json(indent=2) + "\n")
    screen.print(_table(continued))
    screen.print(f"report: {FOLDER / 'report.json'}")
    screen.print(f"Temporal UI, both workflows: {settings.temporal_ui} (KEEP=1 leaves it up)")
    return _as_it_should_be(report, end)


async def _to_the_end(
    settings: Settings, saved: SaveResult, expected: int
) -> tuple[ControllerStatus, Report, list[Continued]]:
    finished = -1

    def on_status(now: ControllerStatus) -> None:
        nonlocal finished
        if now.finished != finished:
            screen.print(f"  {now.finished} of {now.rollouts_total} finished")
        finished = now.finished

    end = await follow_to_the_end(settings, on_status, screen.print)
    return end, *await measure(settings, saved, end, expected)


def _with_turns(settings: Settings, turns: int) -> int:
    """Number of rollouts that have applied the steps of their first `turns` model calls."""
    reached: dict[str, int] = {}
    for mutation in mutations(settings):
        if mutation.call is not None:
            last = reached.get(mutation.rollout_id, 0)
            reached[mutation.rollout_id] = max(last, mutation.call + 1)
    return sum(1 for count in reached.values() if count >= turns)


def _until(what: str, done: Callable[[], bool]) -> None:
    screen.print(f"  waiting until {what}")
    deadline = time.monotonic() + TURN_TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise ProcessFailed(
                f"waited {TURN_TIMEOUT_S:.0f} s in vain until {what}; look at "
                f"`turnpoint logs simple_agent --state-dir {FOLDER / 'state'}`"
            )
        time.sleep(_LOOK_EVERY_S)


def _begin(settings: Settings, *words: str) -> subprocess.Popen[bytes]:
    """Start a command as a user would, in a process of its own: killing Ray ends its drivers."""
    screen.print(f"  $ turnpoint {' '.join(words)}", style="bold", markup=False)
    where = ("--json", "--state-dir", str(settings.state_dir))
    return subprocess.Popen(
        [sys.executable, "-m", "workers", *words, *where], stdout=subprocess.PIPE
    )


def _answer(command: subprocess.Popen[bytes]) -> Any:
    """The answer of a command, once it has ended.

    Raises:
        ProcessFailed: It failed; its own sentence is in the message.
    """
    printed, _ = command.communicate()
    answer = json.loads(printed or b"{}")
    if command.returncode != 0:
        message = answer.get("error", {}).get("message", f"exit code {command.returncode}")
        raise ProcessFailed(f"a command failed: {message}")
    return answer


def _has_failed(command: subprocess.Popen[bytes]) -> bool:
    """False while it runs or after a success.

    Raises:
        ProcessFailed: It failed; its own sentence is in the message.
    """
    if command.poll() not in (None, 0):
        _answer(command)
    return False


def _chapter(title: str) -> None:
    screen.print(title, style="bold cyan")


def _table(continued: list[Continued]) -> Table:
    table = Table("rollout", "turns at the save", "run", "goes on", "turns saved")
    for rollout in continued:
        table.add_row(
            rollout.rollout_id,
            str(rollout.turns_at_save),
            str(rollout.attempt_index),
            rollout.goes_on,
            str(rollout.turns_saved),
        )
    return table


def _as_it_should_be(report: Report, end: ControllerStatus) -> bool:
    """True if every figure is as it should be; the others are named."""
    wrong = {
        "the job did not finish": end.state != "finished",
        "not every unfinished rollout continued": report.continued != report.unfinished_at_save,
        "fewer than 6 rollouts were unfinished at the save": report.unfinished_at_save < 6,
        "a mutation was repeated": report.mutations_repeated != 0,
        "training rows are missing": report.training_rows != report.rows_expected,
        "a training row is there twice": report.duplicate_rows != 0,
    }
    for what in [what for what, is_so in wrong.items() if is_so]:
        screen.print(f"demo: {what}", style="red")
    screen.print(
        f"{report.continued} of {report.unfinished_at_save} unfinished rollouts continued, "
        f"{report.turns_saved} turns saved, pause {report.pause_s:.2f} s, "
        f"restore {report.restore_s:.1f} s, {report.training_rows} training rows"
    )
    return not any(wrong.values())
