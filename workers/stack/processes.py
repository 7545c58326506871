"""Processes of a local stack: started in a session of their own, found and ended by a mark.

Every process of a stack, and every process that one starts, carries `TURNPOINT_STACK_ID=<uuid>`
in its environment. Ending a stack means ending exactly the processes with its mark: never by
name, never by a remembered pid alone (Ray's raylet and vLLM's engine start processes of their
own, and a pid may belong to another process by now).

Guarantees: `end` returns only when no marked process is left. It does not touch the calling
process or those that started it, even if they carry the mark.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from workers.errors import ProcessFailed

STACK_MARK = "TURNPOINT_STACK_ID"
NAME_MARK = "TURNPOINT_PROCESS"
"""Name of the process in the stack; inherited by the processes that it starts."""
KILL_TIMEOUT_S = 10.0

_POLL_S = 0.05
_started: list[subprocess.Popen[bytes]] = []
"""Children of this process, so that they are collected when they end."""


def spawn(
    name: str,
    command: Sequence[str],
    *,
    stack_id: str,
    env: Mapping[str, str],
    folder: Path,
    log: Path,
) -> psutil.Process:
    """Start one process of a stack.

    Args:
        name: Its name in the stack.
        command: Program and arguments.
        stack_id: The mark.
        env: Its whole environment, before the marks.
        folder: Its working folder.
        log: File that its output is appended to.

    Raises:
        OSError: The program or the folder is not there, or cannot be used.
    """
    marks = {
        STACK_MARK: stack_id,
        NAME_MARK: name,
        # setproctitle (Ray, vLLM) writes its title over the environment block unless told not
        # to; the mark would be gone from where other processes can read it.
        "SPT_NOENV": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env={**env, **marks},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _started.append(child)
    return psutil.Process(child.pid)


def names_left(stack_id: str) -> set[str]:
    """Names of the stack's processes that live, or of which a descendant lives."""
    return {name for _, name in _of_stack(stack_id)}


def marked(stack_id: str, names: Collection[str] | None = None) -> list[psutil.Process]:
    """The living processes of a stack, by their mark; with `names` only those of these names."""
    found = _of_stack(stack_id)
    return [process for process, name in found if names is None or name in names]


def live_stacks() -> set[str]:
    """Ids of all stacks of which a process lives."""
    return {env[STACK_MARK] for _, env in _marked_processes()}


def _of_stack(stack_id: str) -> Iterator[tuple[psutil.Process, str]]:
    me = psutil.Process()
    spared = {me.pid, *(process.pid for process in me.parents())}
    for process, env in _marked_processes():
        if env[STACK_MARK] == stack_id and process.pid not in spared:
            yield process, env.get(NAME_MARK, "")


def _marked_processes() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Every living process that carries a mark, with its environment."""
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            env = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended, or is another user's
        if STACK_MARK in env:
            yield process, env


def alive(process: psutil.Process) -> bool:
    """True if a process runs: it exists, is the same one, and is not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(stack_id: str, names: Collection[str] | None = None, *, grace_s: float) -> int:
    """End the processes of a stack and wait until none is left.

    Args:
        stack_id: The mark.
        names: Only the processes of these names; all by default.
        grace_s: How long a SIGTERM may take before SIGKILL; 0 kills at once, like a crash.

    Returns:
        How many processes were ended.

    Raises:
        ProcessFailed: A process outlives SIGKILL by `KILL_TIMEOUT_S` (it hangs in the kernel).
    """
    ended: set[int] = set()
    if grace_s > 0:
        ended |= _signal(marked(stack_id, names), signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while marked(stack_id, names) and time.monotonic() < deadline:
            _reap()
            time.sleep(_POLL_S)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    # Again and again: a raylet forks a worker between the listing and its own end.
    while found := marked(stack_id, names):
        ended |= _signal(found, signal.SIGKILL)
        psutil.wait_procs(found, timeout=1)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in found)
            raise ProcessFailed(
                f"processes {pids} are still there {KILL_TIMEOUT_S:g} s after SIGKILL"
            )
    _reap()
    return len(ended)


def _signal(processes: Collection[psutil.Process], number: int) -> set[int]:
    """Send a signal to processes, of which some may have ended by themselves; answers all pids."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return {process.pid for process in processes}


def _reap() -> None:
    """Collect ended children, else they stay as zombies for as long as this process lives."""
    _started[:] = [child for child in _started if child.poll() is None]


def log_tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error; empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
