"""Killing a live job and bringing its processes back, quickly.

Guarantees: a crash is SIGKILL alone, to processes of this stack alone; it returns when all of
them are gone. The parts of a stack start at the same time.
"""

from __future__ import annotations

import asyncio
import random

import psutil

from tests.real.live import AGENT, MODEL, RESOURCE, Live
from tests.twin.plan import Point
from workers.errors import ProcessFailed
from workers.processes import end, marked

GYM = (MODEL, AGENT, RESOURCE)


class Crashes:
    """Of one stack."""

    def __init__(self, live: Live) -> None:
        """Nothing is started."""
        self._live = live
        self._starting: asyncio.Task[object] | None = None

    async def crash(self, point: Point) -> None:
        """Kill what the point says."""
        if point.machine:
            await asyncio.to_thread(end, self._stack_id(), grace_s=0)
        else:
            await self._kill_job(point)
        await self._start_over()
        if point.machine:
            await asyncio.to_thread(self._live.crash)

    async def bring_back(self, point: Point | None, *, expect_restore: bool) -> None:
        """Start what a point killed; after its processes alone, without waiting for them."""
        if point is not None and point.machine:
            await asyncio.to_thread(self._live.up, fresh=not expect_restore)
        else:
            start = asyncio.to_thread(self._live.stack.start, *GYM, expect_restore=expect_restore)
            self._starting = asyncio.create_task(start)

    async def started(self) -> None:
        """Wait until everything is up.

        Raises:
            ProcessFailed: A process is not.
        """
        if self._starting is not None:
            await self._starting
            self._starting = None

    async def _start_over(self) -> None:
        """Let a start that the crash has met come to its end."""
        starting, self._starting = self._starting, None
        if starting is not None:
            await asyncio.wait({starting})
            error = starting.exception()
            if error is not None and not isinstance(error, ProcessFailed):
                raise error
        # It may have started one more server than the crash has seen.
        await asyncio.to_thread(end, self._stack_id(), names=set(GYM), grace_s=0)

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
        assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]

    def _victims(self) -> list[psutil.Process]:
        return [*marked(self._stack_id(), set(GYM)), *self._live.actors()]

    def _stack_id(self) -> str:
        record = self._live.stack.record()
        assert record is not None
        return record.stack_id
