"""A stack ends wholly, and only its own processes, found by their mark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workers.stack.processes import alive, end, log_tail, marked, names_left, spawn

CHILD_IN_ITS_OWN_SESSION = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
RENAMED = """
import setproctitle, time
setproctitle.setproctitle("x" * 400)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def stack_id() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    end(mark, grace_s=0)


def _spawn(code: str, stack_id: str, folder: Path, name: str = "one") -> psutil.Process:
    log = folder / f"{name}.log"
    process = spawn(
        name,
        [sys.executable, "-c", code],
        stack_id=stack_id,
        env=os.environ,
        folder=folder,
        log=log,
    )
    give_up = time.monotonic() + 20
    while not log.read_text() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert log.read_text(), "the process printed nothing"
    return process


def test_ends_grandchildren_in_other_sessions_too(stack_id: str, tmp_path: Path) -> None:
    child = _spawn(CHILD_IN_ITS_OWN_SESSION, stack_id, tmp_path)
    grandchild = psutil.Process(int((tmp_path / "one.log").read_text()))
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    assert {process.pid for process in marked(stack_id)} == {child.pid, grandchild.pid}
    # The parent's death alone leaves the grandchild: it is found by its mark all the same.
    os.kill(child.pid, signal.SIGKILL)
    assert end(stack_id, grace_s=0) >= 1
    assert not alive(grandchild) and not alive(child)


def test_spares_other_stacks_and_strangers(stack_id: str, tmp_path: Path) -> None:
    other = uuid.uuid4().hex
    code = "import time; print('ready', flush=True); time.sleep(60)"
    theirs = _spawn(code, other, tmp_path, "theirs")
    stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    mine = _spawn(code, stack_id, tmp_path, "mine")
    try:
        assert end(stack_id, grace_s=5) == 1
        assert not alive(mine)
        assert alive(theirs) and stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        end(other, grace_s=0)


def test_one_that_ignores_sigterm_is_killed(stack_id: str, tmp_path: Path) -> None:
    process = _spawn(STUBBORN, stack_id, tmp_path)
    began = time.monotonic()
    assert end(stack_id, grace_s=0.3) == 1
    assert not alive(process)
    assert time.monotonic() - began >= 0.3


def test_mark_survives_a_changed_title(stack_id: str, tmp_path: Path) -> None:
    process = _spawn(RENAMED, stack_id, tmp_path)
    assert [found.pid for found in marked(stack_id)] == [process.pid]


def test_can_end_one_name_of_a_stack(stack_id: str, tmp_path: Path) -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    _spawn(code, stack_id, tmp_path, "one")
    _spawn(code, stack_id, tmp_path, "two")
    assert names_left(stack_id) == {"one", "two"}
    assert end(stack_id, {"one"}, grace_s=0) == 1
    assert names_left(stack_id) == {"two"}


def test_log_tail_is_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {n}" for n in range(5_000)))
    assert log_tail(log, 2) == "line 4998\nline 4999"
    assert log_tail(tmp_path / "none") == ""
