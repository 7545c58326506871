"""Four Gym servers with commands, and commands that run beside the test, for test_supervision.

The servers are named as a user would in `turnpoint.toml`: the stack brings none of its own.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.real.live import AGENT, MODEL, RESOURCE, ROOT, TURNPOINT, Live, environment

DICE = "dice"
URLS = {
    name: f"http://127.0.0.1:{29_640 + n}" for n, name in enumerate((MODEL, AGENT, RESOURCE, DICE))
}
MODULES = {
    MODEL: ("model", "gym.model.server"),
    AGENT: ("agent", "gym.agent.server"),
    RESOURCE: ("resource", "gym.environments.counter"),
    DICE: ("resource", "examples.dice"),
}
WIRED = {AGENT: ("--model-url", URLS[MODEL], "--resource", f"{RESOURCE}={URLS[RESOURCE]}")}
SERVERS = [
    {
        "name": name,
        "kind": kind,
        "url": URLS[name],
        "command": ["python", "-m", module, *WIRED.get(name, ())],
        "folder": str(ROOT),
    }
    for name, (kind, module) in MODULES.items()
]
UNIT = ROOT / "docker" / "turnpoint.service"


class Command:
    """A command that runs while the test goes on."""

    def __init__(self, live: Live, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=live.folder,
            env=env,
        )

    def terminate(self) -> None:
        """Send SIGTERM, as a machine does that is preempted."""
        self._process.send_signal(signal.SIGTERM)

    def end(self, limit_s: float = 120) -> tuple[int, Any]:
        """Exit code, and what it printed as JSON."""
        printed, errors = self._process.communicate(timeout=limit_s)
        assert printed, errors[-2000:]
        return self._process.returncode, json.loads(printed)

    def code(self, limit_s: float = 120) -> int:
        """Exit code, whatever it printed."""
        self._process.communicate(timeout=limit_s)
        return self._process.returncode

    def kill(self) -> None:
        """Leave nothing."""
        if self._process.poll() is None:
            self._process.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process.wait()


@contextmanager
def command(live: Live, *words: str) -> Iterator[Command]:
    """A `turnpoint` command on the stack."""
    where = ("--state-dir", str(live.folder), "--json")
    with started(live, [str(TURNPOINT), *words, *where], environment()) as running:
        yield running


@contextmanager
def started(live: Live, words: Sequence[str], env: Mapping[str, str]) -> Iterator[Command]:
    running = Command(live, words, env)
    try:
        yield running
    finally:
        running.kill()


def unit_of_systemd() -> list[str]:
    """The command that the shipped unit has systemd run."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    assert not [key for key in unit["Service"] if key.startswith("Exec") and key != "ExecStart"]
    return shlex.split(unit["Service"]["ExecStart"])


def as_systemd(live: Live) -> dict[str, str]:
    """The environment that stands for the unit's folder and `turnpoint.toml` here."""
    path = os.pathsep.join([str(TURNPOINT.parent), os.environ["PATH"]])
    return live.by_environment() | {"PATH": path}
