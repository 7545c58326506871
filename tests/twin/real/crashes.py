"""Kills a live job and starts its processes again.

Guarantees: a crash is SIGKILL alone, to processes of this stack alone; it returns when all of
them are gone. The parts of a stack start at the same time; its workers are those of
`tests.faults`, whose activities can be held.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

from gym.protocol import Kind
from tests.real.live import ROOT, Live, until
from tests.twin.real.crash_plan import Point
from workers.config.settings import Settings
from workers.stack.process_specs import child_environment
from workers.stack.processes import alive, end, log_tail, marked, spawn
from workers.stack.stack import settings_of

GYM = {kind.value for kind in Kind}
"""Names of processes; each serves all servers of one kind."""
HELD = ("held_1", "held_2")
_WITHOUT_SERVERS = {"temporal", "ray", "policy"}
READY_S = 90.0


class Crashes:
    """Crashes and starts of one stack.

    Args:
        live: The stack.
        seed: Of the servers' mishaps.
    """

    def __init__(self, live: Live, seed: int) -> None:
        self._live = live
        self._seeds = random.Random(seed)
        self._servers: list[psutil.Process] = []
        self._seen: dict[str, int] = {}

    async def up(self) -> None:
        """Start everything but the Gym servers; Temporal keeps what comes before the workers."""
        await asyncio.to_thread(self._live.up, only=_WITHOUT_SERVERS)
        for name in HELD:
            self._live.start_held_worker(name, wait=False)

    async def crash(self, point: Point) -> None:
        """Kill the processes that the point names."""
        if point.machine:
            await asyncio.to_thread(self._live.crash)
        else:
            await self._kill_job(point)

    async def kill(self, *names: str) -> None:
        """Kill single processes; all Gym servers are killed before a new line."""
        await asyncio.to_thread(end, self._stack_id(), names=names, grace_s=0)

    def start_servers(self, *, expect_restore: bool, undisturbed: bool = False) -> None:
        """Start the Gym servers, without waiting for them."""
        flags = ["--seed", str(self._seeds.getrandbits(32))]
        flags += ["--expect-restore"] if expect_restore else []
        flags += ["--undisturbed"] if undisturbed else []
        self._seen = {kind: _size(self.log(kind)) for kind in GYM}
        self._servers = [
            self.spawn(kind, "tests.twin.real.servers", kind, *flags) for kind in sorted(GYM)
        ]

    def spawn(self, name: str, module: str, *words: str) -> psutil.Process:
        """Start a process that belongs to the stack."""
        record = self._live.stack.record()
        assert record is not None
        return spawn(
            name,
            [sys.executable, "-m", module, *words],
            stack_id=record.stack_id,
            env=child_environment(settings_of(record), ROOT),
            folder=ROOT,
            log=self.log(name),
        )

    async def servers_ready(self) -> None:
        """Wait until every server answers.

        Raises:
            AssertionError: One does not, or has ended.
        """
        settings: Settings = self._live.settings
        async with httpx.AsyncClient(timeout=2, trust_env=False) as http:

            async def ready() -> bool:
                for process, kind in zip(self._servers, sorted(GYM), strict=True):
                    assert alive(process), f"{kind} has ended: {log_tail(self.log(kind))}"
                for server in settings.servers:
                    try:
                        if not (await http.get(f"{server.url}/health")).is_success:
                            return False
                    except httpx.TransportError:
                        return False
                return True

            await until(ready, "the Gym servers", READY_S)

    def logged(self, kind: Kind, event: str) -> list[dict[str, Any]]:
        """Log lines of an event, by the servers of a kind since their last start."""
        return lines_of(self.log(kind.value), event, self._seen.get(kind.value, 0))

    def log(self, name: str) -> Path:
        """A process's log."""
        return self._live.folder / "logs" / f"{name}.log"

    async def _kill_job(self, point: Point) -> None:
        victims = sorted(await asyncio.to_thread(self._victims), key=lambda found: found.pid)
        random.Random(point.order).shuffle(victims)
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue  # an actor that ended because another one did
            await asyncio.sleep(point.gap_s)
        _, left = await asyncio.to_thread(psutil.wait_procs, victims, timeout=10)
        assert not [process for process in left if alive(process)]

    def _victims(self) -> list[psutil.Process]:
        return [*marked(self._stack_id(), GYM), *self._live.actors()]

    def _stack_id(self) -> str:
        record = self._live.stack.record()
        assert record is not None
        return record.stack_id


def lines_of(log: Path, event: str, start: int = 0) -> list[dict[str, Any]]:
    """The lines of a log that tell of an event, from byte `start` on; a torn one is left out."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines(keepends=True)
    named = [line for line in lines if f'"event": "{event}"' in line and line.endswith("}\n")]
    return [json.loads(line) for line in named]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
