"""What the command line needs and does not get: a quick typed error, never a stack trace."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.service import RPCError, RPCStatusCode

from rl import actors
from rl.errors import RayUnreachable
from workers import temporal
from workers.cli import app as cli
from workers.cli.output import EXIT_NOT_REACHABLE
from workers.config.settings import load_settings
from workers.errors import NotRunning
from workers.stack.stack import Stack


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of somebody who takes connections and answers nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_temporal_that_takes_the_connection_and_is_silent_is_given_up(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: leave the limit to the SDK (30 s)."""
    monkeypatch.setattr(temporal, "CONNECT_TIMEOUT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(NotRunning, match=f"{silent}: start the stack with `turnpoint up`"):
        await temporal.connect(load_settings(temporal_address=silent))
    assert time.monotonic() - began < 5


def test_a_ray_that_takes_the_connection_and_is_silent_is_given_up(silent: str) -> None:
    """The process ends too: Ray's own tries go on for minutes. Break: try in a pool's thread."""
    program = (
        "import asyncio\n"
        "from rl import actors\n"
        "actors.ATTACH_LIMIT_S = 1\n"
        "from rl.errors import RayUnreachable\n"
        "try:\n"
        "    asyncio.run(actors.attached())\n"
        "except RayUnreachable as error:\n"
        "    print(error, flush=True)\n"
        "    import os; os._exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAY_ADDRESS": silent, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("ray_unreachable: ") and "turnpoint up" in done.stdout


async def test_a_ray_that_is_not_there_names_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.ray, "is_initialized", lambda: False)
    for address, said in (
        ("127.0.0.1:1", "nobody listens at RAY_ADDRESS"),
        ("nonsense", "nobody listens at RAY_ADDRESS"),
        ("auto", "RAY_ADDRESS is not set"),
        ("", "RAY_ADDRESS is not set"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayUnreachable, match=said) as caught:
            await actors.attached()
        assert "turnpoint up" in caught.value.message


def test_what_temporal_refuses_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Break: let the RPCError rise."""

    def refuse(self: Stack, **_: object) -> int:
        raise RPCError("secret of the server", RPCStatusCode.NOT_FOUND, b"")

    monkeypatch.setattr(Stack, "down", refuse)
    assert cli.run(["down", "--json", "--state-dir", str(tmp_path)]) == EXIT_NOT_REACHABLE
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "temporal_refused" and "NOT_FOUND" in error["message"]
    assert "TEMPORAL_NAMESPACE" in error["message"] and "secret" not in error["message"]
