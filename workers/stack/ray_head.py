"""The Ray head of a local stack: on loopback, without a dashboard, in a folder of its own.

Every process that joins it needs `environment()` too: drivers read it when they connect.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from workers.stack.ports import HOST

OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""The data plane's rows go through actor calls; little of it lies in the object store."""


def environment(address: str) -> dict[str, str]:
    """The variables of the head and of every driver of this cluster."""
    return {
        # Never `auto`: it takes any cluster on the machine.
        "RAY_ADDRESS": address,
        # Without it Ray replaces 127.0.0.1 by the address of the machine's network card.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # On loopback, for one user; the default writes a token into the home folder.
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
    }


def temp_dir(stack_id: str) -> Path:
    """Ray's folder: short, because its sockets' paths may have 107 characters at most."""
    return Path(tempfile.gettempdir()) / f"turnpoint-{stack_id[:8]}"


def remove_temp_dir(folder: Path) -> None:
    """Remove what a head that has ended left behind."""
    if folder.exists():
        shutil.rmtree(folder)


def _program() -> list[str]:
    return [sys.executable, "-P", "-m", "ray.scripts.scripts"]  # no module of the current folder


def command(port: int, *, client_port: int, agent_port: int, cpus: int, folder: Path) -> list[str]:
    """Command line of the head.

    Args:
        port: The GCS port.
        client_port: Not used, but Ray insists on one outside its own range.
        agent_port: Of the agent beside the raylet; one fixed port for all clusters otherwise.
        cpus: CPUs to declare: actors reserve them, nothing checks that they exist.
        folder: Ray's temporary folder.
    """
    return [
        *_program(),
        *("start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address", HOST, "--port", str(port)),
        *("--ray-client-server-port", str(client_port)),
        *("--dashboard-agent-listen-port", str(agent_port)),
        *("--include-dashboard", "false", "--include-log-monitor", "false", "--no-monitor"),
        *("--num-cpus", str(cpus), "--num-gpus", "0"),
        *("--object-store-memory", str(OBJECT_STORE_BYTES)),
        *("--temp-dir", str(folder)),
    ]


def is_ready(address: str) -> bool:
    """True if the cluster's GCS answers."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False  # the question below costs a second of a core
    asked = subprocess.run(
        [*_program(), "health-check", "--address", address],
        env={**os.environ, **environment(address)},
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0
