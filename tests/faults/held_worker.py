"""A snapshot worker whose activities can be held before or after their body.

`python -m tests.faults.held_worker`: the same worker as the product's, with one interceptor. A
test asks for a hold by creating `<state_dir>/holds/<activity>.<before|after>`; the worker that
reaches it renames it to `....reached` and waits, heartbeating, until the test removes that. A
worker killed there is a process that died at exactly this point.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gym.logs import configure_logging
from workers.settings import load_settings
from workers.worker import run


class Holds(Interceptor):
    """Holds activities where a test has asked for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Held(next, self._folder)


class _Held(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, folder: Path) -> None:
        super().__init__(next)
        self._folder = folder

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        name = activity.info().activity_type
        await self._hold(f"{name}.before")
        result = await super().execute_activity(input)
        await self._hold(f"{name}.after")
        return result

    async def _hold(self, point: str) -> None:
        asked = self._folder / point
        reached = self._folder / f"{point}.reached"
        try:
            asked.rename(reached)  # whoever renames it is the one that holds
        except FileNotFoundError:
            return
        reached.write_text(str(os.getpid()))
        while reached.exists():
            activity.heartbeat()
            await asyncio.sleep(0.05)


def main() -> None:
    settings = load_settings()
    folder = settings.state_dir / "holds"
    folder.mkdir(exist_ok=True)
    configure_logging("worker")
    asyncio.run(run(settings, interceptors=[Holds(folder)]))


if __name__ == "__main__":
    main()
