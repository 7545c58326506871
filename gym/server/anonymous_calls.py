"""Calls without identity: served while the server is open, else kept waiting (design section 3).

An unmodified agent would show a refusal to its model as a tool result, so such calls are not
refused. Guarantees: a waiting call is not in flight, so no save waits for it; it goes on when the
server opens, before the server can close again; one whose caller has hung up is dropped. A model
call or a run ends when its caller hangs up: no other caller could ask for its answer, and a save
would wait for it.
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
    """Identity of a call; a call without one waits until the server is open.

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
        await wait_until_open(phases, where, request.receive)
    return identity


async def wait_until_open(
    phases: Phases, where: str, hung_up: Callable[[], Awaitable[object]]
) -> None:
    """Return when the server is open; the caller goes on before the server can close again.

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
