"""Joining Ray."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from rl import actors
from rl.errors import RayUnreachable


async def test_calls_that_meet_an_attach_under_way_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[float] = []

    def init(**_: Any) -> None:
        time.sleep(0.2)
        joined.append(time.monotonic())

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(joined))
    monkeypatch.setattr(actors, "_require_listener", lambda address: None)
    await asyncio.gather(*(actors.attached() for _ in range(4)))
    assert len(joined) == 1


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a listener that accepts connections and answers nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_ray_that_takes_the_connection_and_is_silent_is_given_up(silent: str) -> None:
    """The process ends too: Ray's own tries go on for minutes. Break: try in a pool's thread."""
    program = (
        "import asyncio\n"
        "from rl import actors\n"
        "actors.ATTACH_TIMEOUT_S = 1\n"
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
        ("127.0.0.1:1", "no process listens at RAY_ADDRESS"),
        ("nonsense", "no process listens at RAY_ADDRESS"),
        ("auto", "RAY_ADDRESS is not set"),
        ("", "RAY_ADDRESS is not set"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayUnreachable, match=said) as caught:
            await actors.attached()
        assert "turnpoint up" in caught.value.message
