"""Finding and calling Turnpoint's Ray actors from a driver or another actor.

Guarantees: a call ends with the actor's answer or a `TurnpointError`: the actor's own (Ray's
wrapper taken off), `ActorLost` for a dead or missing one, `RayUnreachable` for no cluster. It
does not repeat a call.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from gym.protocol import DeadlineExceeded, TurnpointError
from rl.errors import ActorLost, RayUnreachable
from rl.messages import RAY_NAMESPACE

ATTACH_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 2.0
_NEXT = "look at `turnpoint status`, and start the stack with `turnpoint up`"
_attaching = threading.Lock()


def attach(address: str | None = None) -> None:
    """Join a cluster as a driver, once per process. Blocks; use a thread.

    Args:
        address: `host:port`; the variable `RAY_ADDRESS` by default.

    Raises:
        RayUnreachable: No address is set, or no cluster answers there. `auto` is refused: it
            takes any cluster on the machine (measured).
    """
    with _attaching:  # of two that join at once, Ray fails one with an AssertionError
        if not ray.is_initialized():
            _join(address or os.environ.get("RAY_ADDRESS", ""))


def _join(address: str) -> None:
    if not address or address == "auto":
        raise RayUnreachable("RAY_ADDRESS is not set: start the stack with `turnpoint up`")
    _require_listener(address)
    try:
        ray.init(
            address=address, namespace=RAY_NAMESPACE, log_to_driver=False, ignore_reinit_error=True
        )
    except (ConnectionError, RuntimeError, RayError) as error:
        raise RayUnreachable(
            f"no Ray cluster at RAY_ADDRESS ({type(error).__name__}): {_NEXT}"
        ) from error


def _require_listener(address: str) -> None:
    """Connect once: Ray itself would try for minutes, and print each try."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise RayUnreachable(
            f"no process listens at RAY_ADDRESS ({type(error).__name__}): {_NEXT}"
        ) from None


_joining: Future[None] | None = None


async def attached(address: str | None = None) -> None:
    """Join a cluster as `attach` does, off the event loop.

    Raises:
        RayUnreachable: As `attach`; also if the process that listens there does not answer in
            20 s. Ray goes on trying for minutes, in a thread that does not keep this process alive.
    """
    global _joining
    if ray.is_initialized():
        return
    if _joining is None or _joining.done():
        _joining = Future()
        threading.Thread(
            target=_attach_into, args=(_joining, address), name="ray-attach", daemon=True
        ).start()
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(_joining)), ATTACH_TIMEOUT_S)
    except TimeoutError:
        raise RayUnreachable(
            f"the process at RAY_ADDRESS has not answered as Ray in {ATTACH_TIMEOUT_S:g} s: {_NEXT}"
        ) from None


def _attach_into(future: Future[None], address: str | None) -> None:
    try:
        attach(address)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


async def find(name: str) -> Any:
    """The handle of a named actor.

    Raises:
        ActorLost: No actor has that name.
        RayUnreachable: There is no cluster.
    """
    await attached()
    try:
        return await asyncio.to_thread(ray.get_actor, name, namespace=RAY_NAMESPACE)
    except ValueError:
        raise ActorLost(
            "there is no such actor: the job is not running", participant=name
        ) from None
    except RayError as error:
        raise RayUnreachable(f"Ray does not answer ({type(error).__name__})") from error


async def call(name: str, method: str, *args: Any, timeout_s: float | None = None) -> Any:
    """Call a method of a named actor and wait for its answer.

    Args:
        name: Name of the actor in Turnpoint's namespace.
        method: Name of the method.
        *args: Its arguments.
        timeout_s: Seconds to wait; None waits for ever. The call itself goes on after it.

    Raises:
        DeadlineExceeded: No answer within `timeout_s`.
        ActorLost: The actor is not there or died over the call.
        TurnpointError: The error of the method.
    """
    handle = await find(name)
    reference = getattr(handle, method).remote(*args)
    try:
        return await asyncio.wait_for(_answer(reference, name), timeout_s)
    except TimeoutError:
        raise DeadlineExceeded(
            f"{method}: no answer in {timeout_s:.1f} s", participant=name
        ) from None


async def _answer(reference: Any, name: str) -> Any:
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, TurnpointError):
            raise cause from None
        raise
    except RayActorError as error:
        raise ActorLost(f"the actor died ({type(error).__name__})", participant=name) from None
