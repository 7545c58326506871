"""Ending a phase when a server has not answered for a whole lease, with that server named.

Agents repeat a step that their resource server does not answer, so they would reach no turn
boundary before the deadline of the phase, while all rollouts are paused.

Guarantees: the phase goes on as long as every server has answered within the lease. The reason of
a silence is not told: the server may be gone, stopped, or started again as another instance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from rl.nemo_gym.fleet import Fleet

T = TypeVar("T")
_ASK_EVERY_S = 1.0


class ServersSilent(Exception):
    """Servers that did not answer for a lease.

    Args:
        servers: Seconds of silence by server name.
    """

    def __init__(self, servers: dict[str, float]) -> None:
        super().__init__(", ".join(servers))
        self.servers = servers


async def unless_silent(work: Coroutine[Any, Any, T], fleet: Fleet, lease_s: float) -> T:
    """The answer of `work`, which is cancelled once a server of any kind is silent for too long.

    Args:
        work: One phase's calls to the servers of one kind.
        fleet: Servers whose status is asked for meanwhile.
        lease_s: Longest silence; a server silent for longer has lost the checkpoint.

    Raises:
        ServersSilent: Servers were silent for longer.
        BaseException: The error of `work`.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_silence(fleet, lease_s))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ServersSilent(watching.result())
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _silence(fleet: Fleet, lease_s: float) -> dict[str, float]:
    heard = dict.fromkeys((server.name for server in fleet.controlled), time.monotonic())
    while True:
        await asyncio.sleep(min(_ASK_EVERY_S, lease_s / 3))
        answered = await fleet.statuses()
        now = time.monotonic()
        heard |= dict.fromkeys((status.server for status in answered), now)
        if silent := {name: now - at for name, at in heard.items() if now - at > lease_s}:
            return silent
