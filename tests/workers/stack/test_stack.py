"""`up` and `down` of a part of a stack, on real Temporal and Ray."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workers.config.settings import Settings, load_settings
from workers.errors import PortInUse, ProcessFailed, Refused, StackBusy, Stopped
from workers.stack import process_specs as stack_parts
from workers.stack.ports import HOST
from workers.stack.processes import marked, names_left
from workers.stack.stack import Stack

PART = {"temporal", "ray"}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    found = Stack(_settings(tmp_path))
    yield found
    found.down(kill=True)


def _settings(folder: Path, **more: object) -> Settings:
    return load_settings(
        attach=False, state_dir=folder / "state", policy="scripted", port_base=26_400, **more
    )


def test_fixed_port_in_use_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        stack = Stack(_settings(tmp_path, ports={"temporal": port}))
        with pytest.raises(PortInUse, match=str(port)):
            stack.up(only=PART)
    assert stack.record() is None


def test_two_commands_on_one_stack_are_kept_apart(stack: Stack, tmp_path: Path) -> None:
    """Break: wait for the lock, or do without it."""
    with stack._locked():
        for command in (stack.up, stack.down, Stack(_settings(tmp_path)).down):
            with pytest.raises(StackBusy, match=f"{tmp_path / 'state'}; wait for it"):
                command()
    assert stack.down() == 0


def test_failed_up_names_process_and_log_and_leaves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [sys.executable, "-c", "import sys; sys.exit('no room on this machine')"]
    monkeypatch.setattr(stack_parts.temporal_server, "command", lambda *_: words)
    with pytest.raises(ProcessFailed, match=r"(?s)temporal has ended.*no room on.*logs temporal"):
        stack.up(only=PART)
    record = stack.record()
    assert record is not None
    assert marked(record.stack_id) == []
    assert not record.ray_folder.exists()


def test_who_waits_for_a_process_can_let_go_of_the_stack(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`turnpoint run` ends within its grace period, and a `down` gets the stack.

    Break: workers/stack/stack.py: wait until all is ready, up to `ready_timeout_s`.
    """
    words = [sys.executable, "-c", "import time; time.sleep(100)"]
    monkeypatch.setattr(stack_parts.temporal_server, "command", lambda *_: words)
    monkeypatch.setattr(stack_parts.temporal_server, "is_ready", lambda _: False)
    starting = threading.Thread(target=stack.up, kwargs={"only": {"temporal"}}, daemon=True)
    starting.start()
    while (record := stack.record()) is None or not record.processes:
        assert starting.is_alive()
        time.sleep(0.05)
    stack.let_go()
    starting.join(10)
    assert not starting.is_alive()
    assert names_left(record.stack_id) == {"temporal"}, "it goes on getting ready"
    assert Stack(_settings(tmp_path)).down(kill=True) == 1


@pytest.mark.real
def test_up_crash_up_down(stack: Stack, tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        first = stack.up(only=PART)
        assert stack.status() == {"temporal": True, "ray": True}
        assert _listens_on_loopback_only(first.stack_id)
        with pytest.raises(Refused, match="turnpoint down"):
            stack.up(only=PART)

        assert stack.down(kill=True) >= 4  # Temporal, Ray's head, GCS, raylet
        assert marked(first.stack_id) == []
        second = stack.up(only=PART)
        assert second.ports == first.ports
        assert second.stack_id != first.stack_id

        assert stack.kill("temporal") == 1
        assert stack.status() == {"temporal": False, "ray": True}
        assert "temporal" in stack.gone() and "ray" not in stack.gone()
        stack.restart("temporal")
        assert names_left(second.stack_id) == PART

        assert stack.down() >= 4
        assert marked(second.stack_id) == []
        assert not second.ray_folder.exists()
        with pytest.raises(Stopped, match="turnpoint down"):
            stack.restart("temporal")
        assert marked(second.stack_id) == []
        assert stack.down() == 0
        with sqlite3.connect(tmp_path / "state" / "temporal.sqlite") as database:
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def _listens_on_loopback_only(stack_id: str) -> bool:
    addresses = {
        connection.laddr.ip
        for process in marked(stack_id)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    return bool(addresses) and addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
