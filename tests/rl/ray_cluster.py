"""A Ray cluster of a test: on loopback, found again by a mark in its environment, killed whole."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import ray
from ray._private import ray_constants
from transfer_queue import interface

from rl.messages import RAY_NAMESPACE
from tests.ports import free_ports

REPO = Path(__file__).resolve().parents[2]
MARK = "TURNPOINT_TEST_CLUSTER"
START_LIMIT_S = 60


@contextmanager
def ray_cluster(num_cpus: int = 8) -> Iterator[str]:
    """Start a cluster, join it as a driver, and kill every process of it at the end.

    Yields:
        Its address.
    """
    mark = uuid.uuid4().hex
    temp = tempfile.mkdtemp(prefix="r", dir="/tmp")  # short: Ray makes socket paths of it
    port, client, agent, http = free_ports(4)
    assert not ray_constants.ENABLE_RAY_CLUSTER, "ray was imported before tests.rl"
    environment = os.environ | {MARK: mark, "PYTHONPATH": str(REPO), "RAY_USAGE_STATS_ENABLED": "0"}
    command = f"""start --head --block --port={port} --node-ip-address=127.0.0.1
        --num-cpus={num_cpus} --include-dashboard=false --disable-usage-stats
        --ray-client-server-port={client} --dashboard-agent-grpc-port={agent}
        --dashboard-agent-listen-port={http} --object-store-memory=100000000 --temp-dir={temp}"""
    head = None
    try:
        with Path(temp, "start.log").open("wb") as log:
            head = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *command.split()],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _join(f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}"
    finally:
        leave()
        kill_marked(mark)
        if head is not None:
            head.wait(timeout=10)
        shutil.rmtree(temp, ignore_errors=True)


def _join(address: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=1):
                pass
            ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False)
            return
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def leave() -> None:
    """Leave the cluster."""
    leave_transfer_queue()
    ray.shutdown()


def leave_transfer_queue() -> None:
    """Have this process forget TransferQueue, without ending it for others as `tq.close` would."""
    client = interface._TQ_CLIENT
    interface._TQ_CLIENT = interface._TQ_CONTROLLER = None
    if client is not None:
        client.close()


def kill_marked(mark: str) -> None:
    """SIGKILL every process that carries the mark in its environment, and wait for their ends."""
    marked = [process for process in psutil.process_iter() if _mark_of(process) == mark]
    for process in marked:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(marked, timeout=10)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None
