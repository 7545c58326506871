"""Callers without identity: served while the server is open, parked while it is closed (section 3).

Guarantees: a parked call is not in flight, so no save waits for it; it goes on by itself when the
server opens, in the same instant in which that is seen; one whose caller has hung up meanwhile is
dropped. An unmodified agent that was refused would show the refusal to its model as a tool result.
A model call or a run whose caller hangs up ends with that: no caller could ask for its answer, and
a save would wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from gym.checkpoint.phases import Phases
from gym.protocol import Identity

log = logging.getLogger("turnpoint.gym")
T = TypeVar("T")


async def caller_of(phases: Phases, request: Request, where: str) -> Identity | None:
    """Identity of a call; a call without one is parked until the server is open.

    Args:
        phases: The server's state machine.
        request: The call; its body is read to its end.
        where: Name of the call, for the log.

    Raises:
        NotJoined, StaleAttempt, IdentityMismatch: As `Phases.identify`.
        ClientDisconnect: The caller has left.
    """
    identity = phases.identify(request.headers)
    # Read to its end: all that can be received after it is that the caller has left.
    await request.body()
    if identity is None:
        await park(phases, where, request.receive)
    return identity


async def park(phases: Phases, where: str, hung_up: Callable[[], Awaitable[object]]) -> None:
    """Return when new work is accepted; the caller goes on before the server can close again.

    Args:
        phases: The server's state machine.
        where: Name of the call, for the log.
        hung_up: Returns when the caller has left.

    Raises:
        ClientDisconnect: The caller has left.
    """
    if phases.is_open:
        return
    began = time.monotonic()
    _log_state(where, "begin", began)
    gone = asyncio.ensure_future(hung_up())
    try:
        while not phases.is_open:
            opened = asyncio.ensure_future(phases.wait_open())
            try:
                await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
            if gone.done():
                gone.result()
                _log_state(where, "dropped", began)
                raise ClientDisconnect
    finally:
        gone.cancel()
    _log_state(where, "end", began)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The answer of `work` to a caller without identity; the work ends when the caller hangs up.

    Args:
        request: The call; its body has been read.
        work: Serves it.

    Raises:
        ClientDisconnect: The caller has left.
    """
    # First in the loop's queue: a `prepare` that comes now looks after it has begun.
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


def _log_state(where: str, state: str, began: float) -> None:
    ms = round((time.monotonic() - began) * 1000, 3)
    log.info("held", extra={"event": "held", "where": where, "state": state, "ms": ms})
