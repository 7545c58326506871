"""A Gym server is one process: a second one of it ends at its start and serves nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gym.protocol import MoreThanOneProcess
from gym.protocol.control import BASE_PATH
from gym.server.one_process import only_process, require_one_worker
from tests.gym.fleet import until
from tests.gym.parts import settings
from tests.ports import free_port

AUTHORIZED = {"authorization": "Bearer s3cret"}
FACTORY = """
from gym.environments.counter import Counter, CounterSettings
from gym.resource import environment_app

def app():
    return environment_app(Counter(), CounterSettings())
"""


def test_servers_of_other_names_roots_and_ports_are_not_in_the_way(tmp_path: Path) -> None:
    """Break: leave name, root or port out of the lock's name."""
    one = settings(tmp_path)
    others = [
        one.model_copy(update=change)
        for change in ({"name": "x"}, {"snapshot_root": tmp_path / "x"}, {"port": 1})
    ]
    with only_process(one):
        for other in others:
            with only_process(other):
                pass
        with pytest.raises(MoreThanOneProcess, match=f"serves {one.name} on .*--workers"):
            only_process(one).__enter__()
    with only_process(one):
        pass


@pytest.mark.parametrize("value", ["2", "0", "many"])
def test_web_concurrency_is_refused_by_name(tmp_path: Path, value: str) -> None:
    one = settings(tmp_path)
    with pytest.raises(MoreThanOneProcess, match=f"WEB_CONCURRENCY .* of {one.name}"):
        require_one_worker(one, {"WEB_CONCURRENCY": value})
    require_one_worker(one, {"WEB_CONCURRENCY": "1"})
    require_one_worker(one, {})


class Workers:
    """`uvicorn --workers 2` over a factory, or a counter; its log."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.log = root / "log"
        token = root / "token"
        token.touch(mode=0o600)
        token.write_text("s3cret")
        (root / "factory.py").write_text(FACTORY)
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def started(self, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        given = {
            "TURNPOINT_SERVER_NAME": "counter",
            "TURNPOINT_SERVER_PORT": str(self.port),
            "TURNPOINT_SERVER_SNAPSHOT_ROOT": str(self.root),
            "TURNPOINT_SERVER_CONTROL_TOKEN_FILE": str(self.root / "token"),
        }
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=log,
                stderr=log,
                cwd=self.root,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(self.root), *sys.path]),
                    **given,
                    **environment,
                },
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return self.instance() != ""
        except OSError:
            return False

    def instance(self) -> str:
        answer = httpx.get(
            f"{self.url}{BASE_PATH}/capabilities", headers=AUTHORIZED, trust_env=False
        )
        return str(answer.json()["instance_id"])


@pytest.mark.real
def test_with_two_workers_the_second_is_refused_with_the_server_named(tmp_path: Path) -> None:
    """Break: let `create_app` start without `only_process`: both serve. uvicorn then ends all."""
    workers = Workers(tmp_path)
    uvicorn = ("uvicorn", "--factory", "factory:app", "--port", str(workers.port))
    with workers.started(*uvicorn, "--workers", "2") as parent:
        parent.wait(30)
    said = workers.log.read_text()
    assert said.count("Application startup complete") == 1
    assert "MoreThanOneProcess: more_than_one_process: another process serves counter on" in said


@pytest.mark.real
async def test_a_server_is_started_again_at_once_after_a_sigkill(tmp_path: Path) -> None:
    """Break: keep the lock in a file that is there or not."""
    workers = Workers(tmp_path)
    instances = []
    for _ in range(2):
        with workers.started("gym.environments.counter"):
            await until(workers.answers, 30)
            instances.append(workers.instance())
    assert len(set(instances)) == 2
