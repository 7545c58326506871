"""A snapshot worker whose activities can be held before, inside or after their body.

`python -m tests.faults.held_worker`: the same worker as the product's, with one interceptor and
two wrapped calls. A test asks for a hold by creating `<state_dir>/holds/<activity>.<place>`; the
worker that reaches it renames it to `....reached` and waits until the test removes that. A worker
killed there is a process that died at exactly this point.

| place | where |
|---|---|
| `before` | nothing of the body has run |
| `inside` | the body runs, its heartbeats and renewals too: an actor works for it, unheard |
| `after` | the body has returned, Temporal has not heard of it |

Inside of `publish_snapshot` everything is written and sealed, and not renamed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gym.logs import configure_logging
from rl.controller import client as controller_client
from rl.nemo_gym import client as nemo_gym_client
from rl.snapshots.names import JobFolder
from workers.config.settings import load_settings
from workers.worker import run

POLL_S = 0.05


class Holds(Interceptor):
    """Holds activities where a test has asked for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Held(next, self)

    def hold_inside(self) -> None:
        """Hold bodies too, where they ask an actor, and where a publish is about to rename."""
        for module in (controller_client, nemo_gym_client):
            setattr(module, "call", self._held_call(module.call))  # noqa: B010 - mypy: no attribute
        write = JobFolder.replace_file

        def replace_file(folder: JobFolder, tmp: str, name: str, data: bytes) -> None:
            write(folder, tmp, name, data)
            reached = self._reach(_point("inside"))
            while reached is not None and reached.exists():
                time.sleep(POLL_S)  # this is a thread: the body's heartbeats go on

        JobFolder.replace_file = replace_file  # type: ignore[method-assign]

    def _held_call(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def held(name: str, method: str, *args: Any, **options: Any) -> Any:
            if method == "renew":  # it runs beside the body
                return await call(name, method, *args, **options)
            asked = asyncio.ensure_future(call(name, method, *args, **options))
            try:
                reached = self._reach(_point("inside"))
                while reached is not None and reached.exists():  # noqa: ASYNC110 - a test's file
                    await asyncio.sleep(POLL_S)
                return await asked
            finally:
                asked.cancel()

        return held

    async def hold(self, place: str) -> None:
        """Wait outside of the body, heartbeating, if a test has asked for it."""
        reached = self._reach(_point(place))
        while reached is not None and reached.exists():
            activity.heartbeat()
            await asyncio.sleep(POLL_S)

    def _reach(self, point: str) -> Path | None:
        reached = self._folder / f"{point}.reached"
        try:
            (self._folder / point).rename(reached)  # one worker succeeds, and waits
        except FileNotFoundError:
            return None
        reached.write_text(str(os.getpid()))
        return reached


def _point(place: str) -> str:
    return f"{activity.info().activity_type}.{place}"


class _Held(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, holds: Holds) -> None:
        super().__init__(next)
        self._holds = holds

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await self._holds.hold("before")
        result = await super().execute_activity(input)
        await self._holds.hold("after")
        return result


def main() -> None:
    settings = load_settings()
    folder = settings.state_dir / "holds"
    folder.mkdir(exist_ok=True)
    configure_logging("worker")
    holds = Holds(folder)
    holds.hold_inside()
    asyncio.run(run(settings, interceptors=[holds]))


if __name__ == "__main__":
    main()
