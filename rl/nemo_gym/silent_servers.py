"""A server that is down while a save waits for others: looked for, and named within its patience.

Agents repeat a step that their resource server does not answer, so they would not come to a turn
boundary before the deadline of the whole phase, and all rollouts stand still meanwhile.

Guarantees: the work goes on as long as every server has answered within the patience. It does not
say why one is silent: gone, stopped, or started again as another instance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from gym.protocol import Status

T = TypeVar("T")
_LOOK_EVERY_S = 1.0


class Silent(Exception):
    """Servers that did not answer: seconds of silence by name."""

    def __init__(self, servers: dict[str, float]) -> None:
        """Keep who it was."""
        super().__init__(", ".join(servers))
        self.servers = servers


async def unless_silent(
    work: Coroutine[Any, Any, T],
    names: Collection[str],
    statuses: Callable[[], Awaitable[list[Status]]],
    patience_s: float,
) -> T:
    """What `work` answers; it is cancelled once one of the servers is silent for too long.

    Args:
        work: To be waited for.
        names: Servers to look at meanwhile.
        statuses: Asks them all; those that do not answer are absent.
        patience_s: Longest silence of one.

    Raises:
        Silent: Some were silent for longer.
        BaseException: What `work` raises.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_silence(names, statuses, patience_s))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Silent(watching.result())
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _silence(
    names: Collection[str], statuses: Callable[[], Awaitable[list[Status]]], patience_s: float
) -> dict[str, float]:
    heard = dict.fromkeys(names, time.monotonic())
    while True:
        await asyncio.sleep(min(_LOOK_EVERY_S, patience_s / 3))
        heard |= dict.fromkeys((found.server for found in await statuses()), time.monotonic())
        now = time.monotonic()
        silent = {name: now - at for name, at in heard.items() if now - at > patience_s}
        if silent:
            return silent
