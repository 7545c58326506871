"""`turnpoint doctor`: the problems of this environment, each in one sentence with the next step.

Guarantees: nothing is started and nothing is changed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.config.example_rows import example_rows
from workers.config.gym_servers import GymServer, search_path
from workers.config.settings import Settings
from workers.errors import WorkerRoomError
from workers.stack.ports import HOST
from workers.stack.temporal_server import binary

FREE_BYTES = 2 * 1024**3
"""Logs, Temporal's file and the snapshots of a small job, with room to spare."""
SOCKET_PATH_ROOM = 80
"""Ray's longest socket name below its temporary folder; Linux allows 107 bytes in all."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    problem: str | None
    """None: there is no problem."""


def examine(settings: Settings) -> list[Finding]:
    """Run every check, in the order of the table on the terminal."""
    checks: dict[str, Callable[[Settings], str | None]] = {
        "python": _python,
        "package gym": _package_gym,
        "vllm": _vllm,
        "temporal": lambda _: _problem_of(binary),
        "example rows": lambda _: _problem_of(example_rows),
        "state folder": _space,
        "temporary folder": _temporary,
        "loopback": _loopback,
    }
    findings = [Finding(name, check(settings)) for name, check in checks.items()]
    servers = [server for server in settings.servers if server.command]
    return findings + [Finding(f"server {server.name}", _server(server)) for server in servers]


def _python(settings: Settings) -> str | None:
    if sys.version_info[:2] == (3, 11):
        return None
    return f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; the lock is for 3.11"


def _package_gym(settings: Settings) -> str | None:
    for name in ("gym", "openai-gym"):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"the retired package {name!r} hides Turnpoint's folder `gym`: pip uninstall {name}"
    spec = importlib.util.find_spec("gym.protocol")
    return None if spec else "another `gym` is imported; run in an environment of Turnpoint's own"


def _vllm(settings: Settings) -> str | None:
    if settings.policy != "vllm" or importlib.util.find_spec("vllm"):
        return None
    return "vllm is not installed: `make install`, or use --policy scripted or a URL"


def _problem_of(work: Callable[[], object]) -> str | None:
    try:
        work()
    except WorkerRoomError as error:
        return str(error)
    return None


def _server(server: GymServer) -> str | None:
    folder = server.folder or Path.cwd()
    if not folder.is_dir():
        return f"{folder} is not there; correct its `folder` in turnpoint.toml"
    program = server.command[0]
    found = shutil.which(str(folder / program) if "/" in program else program, path=search_path())
    return None if found else f"no program {program!r}; correct its `command` in turnpoint.toml"


def _space(settings: Settings) -> str | None:
    state = settings.state_dir
    folder = next(path for path in (state, *state.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written; give another one with --state-dir"
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        return f"{free // 1024**2} MiB free at {folder}; {FREE_BYTES // 1024**2} are wanted"
    return None


def _temporary(settings: Settings) -> str | None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    if len(str(folder)) + SOCKET_PATH_ROOM > 107:
        return f"{folder} is too long for Ray's sockets; set TMPDIR to a short path"
    return None


def _loopback(settings: Settings) -> str | None:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, 0))
        except OSError as error:
            return f"no port can be opened on {HOST} ({error.strerror})"
    return None
