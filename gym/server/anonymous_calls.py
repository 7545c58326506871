"""Callers without identity: served while the server is open, else held (design section 3).

Guarantees: a held call is not in flight, so no save waits for it; it goes on by itself when the
server opens, in the same instant in which that is seen; one whose caller has hung up meanwhile is
dropped. An unmodified agent that was refused would show the refusal to its model as a tool result.
A model call or a run whose caller hangs up ends with that: nobody could ask for its answer, and a
save would wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from gym.checkpoint.phases import Standing
from gym.protocol import Identity

if TYPE_CHECKING:
    from gym.checkpoint.participant import Participant

log = logging.getLogger("turnpoint.gym")
T = TypeVar("T")


async def hold(standing: Standing, where: str, hung_up: Callable[[], Awaitable[object]]) -> None:
    """Return when new work is accepted; the caller goes on before anybody can close it again.

    Args:
        standing: Says whether it is.
        where: What is held, for the log.
        hung_up: Returns when the caller has left.

    Raises:
        ClientDisconnect: The caller has left.
    """
    if standing.is_open:
        return
    began = time.monotonic()
    _say(where, "begin", began)
    gone = asyncio.ensure_future(hung_up())
    try:
        while not standing.is_open:
            opened = asyncio.ensure_future(standing.wait_open())
            try:
                await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
            if gone.done():
                gone.result()
                _say(where, "dropped", began)
                raise ClientDisconnect
    finally:
        gone.cancel()
    _say(where, "end", began)


async def caller_of(participant: Participant, request: Request, where: str) -> Identity | None:
    """Whose call it is; one without identity is held until the server is open.

    Raises:
        NotJoined, StaleAttempt, IdentityMismatch: As `Participant.identify`.
        ClientDisconnect: The caller has left.
    """
    identity = participant.identify(request.headers)
    # Read to its end: what is received after it is that the caller has left, and nothing else.
    await request.body()
    if identity is None:
        await participant.hold(where, request.receive)
    return identity


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` answers to a caller without identity; it ends when that caller hangs up.

    Args:
        request: The call; its body has been read.
        work: What serves it.

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


def _say(where: str, state: str, began: float) -> None:
    ms = round((time.monotonic() - began) * 1000, 3)
    log.info("held", extra={"event": "held", "where": where, "state": state, "ms": ms})
