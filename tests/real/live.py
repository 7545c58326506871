"""A local stack with the scripted policy, driven as a user and an operator would.

Every process is real: the Temporal server, Ray, TransferQueue, the Gym servers, two workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.contract import SaveOutcome, SaveResult
from gym.client import GymClient
from gym.protocol import Kind, Phase, Status, StatusRequest
from rl.snapshots.folder import SnapshotFolder
from workers.config.key_files import read_key_file
from workers.config.settings import Settings, load_settings
from workers.stack.process_specs import child_environment
from workers.stack.processes import marked, spawn
from workers.stack.stack import Stack, settings_of
from workers.temporal import connect

JOB = "demo"
ROOT = Path(__file__).parents[2]
CLI_LIMIT_S = 180.0
NOT_THE_JOBS = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Ray's own processes: the raylet dies with its agents, and an idle worker has no actor yet."""
TURNPOINT = Path(sys.executable).parent / "turnpoint"
TEMPORAL = Path(sys.executable).parent / "temporal"


class Live:
    """One stack in a folder of its own.

    Args:
        folder: Its state folder.
        options: Flags of single processes, as `Settings.options`.
        port_base: First port of those that are tried.
        settings: Other keys.
    """

    def __init__(
        self,
        folder: Path,
        options: dict[str, dict[str, str]],
        *,
        port_base: int,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self._given = {
            "job_id": JOB,
            "policy": "scripted",
            "options": options,
            "port_base": port_base,
            "lease_s": 5,
            **settings,
        }

    # --- the stack ----------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """As the running stack has them."""
        return load_settings(state_dir=self.folder)

    @property
    def stack(self) -> Stack:
        """To start, kill and end its processes."""
        return Stack(load_settings(attach=False, state_dir=self.folder, **self._given))

    def by_environment(self) -> dict[str, str]:
        """The environment in which commands find what this stack is started with."""
        given = load_settings(attach=False, state_dir=self.folder, **self._given)
        return environment() | given.environment()

    def up(self, **options: Any) -> None:
        """Start everything and wait until it is ready."""
        self.stack.up(**options)

    def crash(self) -> None:
        """SIGKILL to every process, the Temporal server and Ray included."""
        self.stack.down(kill=True)

    def down(self) -> None:
        """Leave nothing running."""
        self.stack.down(kill=True)

    def pids(self, name: str) -> list[psutil.Process]:
        """The living processes of one name."""
        record = self.stack.record()
        assert record is not None
        return marked(record.stack_id, {name})

    def actor(self, name: str) -> psutil.Process:
        """The process of a Ray actor, by the beginning of its class's name."""
        found = [p for p in self.pids("ray") if p.cmdline()[0].startswith(f"ray::{name}")]
        assert len(found) == 1, f"{len(found)} processes of {name}"
        return found[0]

    def actors(self) -> list[psutil.Process]:
        """The processes of the job's Ray actors."""
        found = []
        for process in self.pids("ray"):
            try:
                title = process.cmdline()[0]
            except (psutil.NoSuchProcess, IndexError):
                continue  # it has ended since it was listed
            if title.startswith("ray::") and not title.startswith(NOT_THE_JOBS):
                found.append(process)
        return found

    def cli(self, *words: str, fails: bool = False) -> Any:
        """Run `turnpoint ... --json` and read what it prints.

        Raises:
            AssertionError: It failed and should not have, or the other way round.
        """
        command = [str(TURNPOINT), *words, "--state-dir", str(self.folder), "--json"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=CLI_LIMIT_S,
            check=False,
            cwd=self.folder,
            env=environment(),
        )
        assert (done.returncode != 0) == fails, (
            f"{words}: {done.stdout[-800:]}{done.stderr[-2000:]}"
        )
        return json.loads(done.stdout)

    def temporal_start(self, workflow: str, workflow_id: str, given: object) -> None:
        """Start a workflow with Temporal's own command line and JSON input."""
        subprocess.run(
            [
                *(str(TEMPORAL), "workflow", "start", "--type", workflow),
                *("--task-queue", "turnpoint-snapshots", "--workflow-id", workflow_id),
                *("--input", json.dumps(given)),
                *("--address", self.settings.temporal_address or ""),
            ],
            check=True,
            capture_output=True,
            timeout=30,
            env=environment(),
        )

    async def client(self) -> Client:
        """A client of its Temporal server."""
        return await connect(self.settings)

    # --- what it holds ------------------------------------------------------------------------

    async def statuses(self, *, without: str | None = None) -> dict[str, Status]:
        """Status of every Gym server, by name.

        Args:
            without: A server that is down, and is not asked.
        """
        settings = self.settings
        token = read_key_file(settings.token_file, "control_token")
        found = {}
        async with GymClient(token) as gym:
            for server in settings.servers:
                if server.name == without:
                    continue
                who = await gym.capabilities(server.url, server.name)
                request = StatusRequest(
                    incarnation=who.incarnation or 1, instance_id=who.instance_id
                )
                found[server.name] = await gym.status(server.url, server.name, request)
        return found

    async def all_open(self) -> bool:
        """Tell whether every Gym server accepts work."""
        return all(status.phase is Phase.OPEN for status in (await self.statuses()).values())

    def mutations(self) -> int:
        """Mutations that the resource server has applied; it only rises.

        (The model server's ledger shrinks when finished rollouts are forgotten.)
        """
        return len(self.log("counter", "mutation"))

    def finished(self) -> int:
        """Number of finished rollouts."""
        controller = self.cli("status")["job"]["controller"]
        return 0 if controller is None else int(controller["finished"])

    def wait_until_finished(self) -> None:
        """Follow the job to its end: one process instead of one for each look.

        Raises:
            AssertionError: It failed or is gone.
        """
        assert self.cli("status", "--follow")["state"] == "finished"

    def rows(self) -> dict[str, dict[str, Any]]:
        """Every training row by rollout, read from TransferQueue."""
        found: dict[str, dict[str, Any]] = json.loads(self._driver("rows").splitlines()[-1])
        return found

    def end_actors(self, *names: str) -> None:
        """End actors so that Ray does not start them again."""
        self._driver("end_actors", *names)

    def _driver(self, module: str, *words: str) -> str:
        """Output of a process that joins the stack's Ray: this process never joins one."""
        done = subprocess.run(
            [sys.executable, "-m", f"tests.real.{module}", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            cwd=ROOT,
            env=child_environment(self.settings, ROOT),
        )
        return done.stdout

    def log(self, name: str, event: str) -> list[dict[str, Any]]:
        """The lines of a process's log that tell of an event."""
        path = self.folder / "logs" / f"{name}.log"
        lines = []
        for line in path.read_text().splitlines():
            if line.startswith("{") and f'"event": "{event}"' in line:
                lines.append(json.loads(line))
        return lines

    @property
    def snapshots(self) -> SnapshotFolder:
        """The job's snapshots."""
        return SnapshotFolder(self.settings.job_config())

    def left_over(self) -> list[str]:
        """Names of unpublished folders."""
        return sorted(path.name for path in self.snapshots.path.glob("tmp_snapshot_*"))

    def acknowledged(self, after: float, before: float) -> dict[str, list[float]]:
        """When each result was acknowledged at the agent, by rollout, between two moments."""
        found: dict[str, list[float]] = {}
        for line in self.log(AGENT, "control"):
            logged = (line["operation"], line["state"], line["outcome"])
            if logged == ("acknowledge", "end", "ok") and after < line["ts"] < before:
                found.setdefault(line["rollout_id"], []).append(line["ts"])
        return found

    # --- workers that can be held -------------------------------------------------------------

    def start_held_worker(self, name: str, *, wait: bool = True) -> psutil.Process:
        """Start a worker whose activities `hold` can stop; with `wait` it is ready on return."""
        record = self.stack.record()
        assert record is not None
        log = self.folder / "logs" / f"{name}.log"
        seen = log.stat().st_size if log.exists() else 0
        process = spawn(
            name,
            [sys.executable, "-m", "tests.faults.held_worker"],
            stack_id=record.stack_id,
            env=child_environment(settings_of(record), ROOT),
            folder=ROOT,
            log=log,
        )
        if wait:
            wait_for(lambda: b'"event": "ready"' in log.read_bytes()[seen:], f"{name} to be ready")
        return process

    @contextmanager
    def hold(self, point: str) -> Iterator[Path]:
        """Ask that the next activity that gets to `<activity>.<before|after>` waits there.

        Yields:
            The file that exists once it is reached; its removal lets the activity go on.
        """
        folder = self.folder / "holds"
        folder.mkdir(exist_ok=True)
        asked, reached = folder / point, folder / f"{point}.reached"
        asked.touch()
        try:
            yield reached
        finally:
            asked.unlink(missing_ok=True)
            reached.unlink(missing_ok=True)

    def worker_at(self, reached: Path) -> int:
        """Pid of the worker that waits there."""
        return int(reached.read_text())


async def published(handle: WorkflowHandle[Any, Any], limit_s: float = 60) -> SaveResult:
    """The result of a save that must publish.

    Raises:
        AssertionError: It failed; the failure's type and sentence are shown.
    """
    try:
        result = SaveResult.model_validate(await asyncio.wait_for(handle.result(), limit_s))
    except WorkflowFailureError as error:
        kind = getattr(error.cause, "type", type(error.cause).__name__)
        raise AssertionError(f"the save failed: {kind}: {error.cause}") from None
    assert result.outcome is SaveOutcome.PUBLISHED
    return result


def environment() -> dict[str, str]:
    """The caller's, without what it says about another stack."""
    prefixes = ("TURNPOINT_", "RAY_", "TEMPORAL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Poll until `condition` holds.

    Raises:
        AssertionError: It did not within `limit_s`.
    """
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.05)


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, limit_s: float = 60.0
) -> float:
    """Poll until an asynchronous `condition` holds.

    Returns:
        Seconds that it took.

    Raises:
        AssertionError: It did not within `limit_s`.
    """
    start = time.monotonic()
    while not await condition():
        assert time.monotonic() - start < limit_s, f"waited {limit_s:.0f} s for {what}"
        await asyncio.sleep(0.05)
    return time.monotonic() - start


AGENT, MODEL, RESOURCE = "simple_agent", "policy_model", "counter"
KINDS = {AGENT: Kind.AGENT, MODEL: Kind.MODEL, RESOURCE: Kind.RESOURCE}
