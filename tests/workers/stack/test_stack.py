"""`up` and `down` of a part of a stack, on real Temporal and Ray."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workers.config.settings import Settings, load_settings
from workers.errors import PortInUse, Refused, StackBusy, Stopped
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
