"""Mishaps of a twin run, besides crashes: calls that fail, repeat or take long, by the seed.

A failed call makes RL send the rollout again as run n+1; a step whose answer is withheld is sent
again by its agent; an acknowledgement that takes its time is in flight at more crashes. What is
drawn depends on the seed, the rollout and the run (of a step: on the request id) alone.

Guarantees: a call meets one mishap at most, and the rows of the job are those without any.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from starlette.responses import JSONResponse

from gym.protocol import (
    CheckpointParked,
    Identity,
    Kind,
    ServerFault,
    SessionLost,
    TurnpointError,
)
from workflows.save_snapshot import PHASES

Scope, Message = dict[str, Any], dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

log = logging.getLogger("turnpoint.twin")


class Mishap(StrEnum):
    """One thing that goes wrong with a call."""

    RUN_REFUSED = "run refused"
    """`/run` is answered 500 and never reaches the agent."""
    RUN_LOST = "run lost"
    """`/run` is answered 500 while the agent is at the run."""
    RESULT_LOST = "result lost"
    """`/run` is answered 500 when the agent has the result."""
    STEP_FAILED = "step failed"
    """A step is answered `session_lost`: the agent gives the run up."""
    STEP_REPEATED = "step repeated"
    """A step is done and its answer withheld: the agent issues it again."""
    ANSWER_LOST = "answer lost"
    """An activity has done its work and its answer is lost: Temporal tries it again."""
    CANCELLED = "save cancelled"
    """An operator cancels a save in one of its phases before publish."""


CANCELLABLE = PHASES[: PHASES.index("publish_snapshot")]
FAILING = {Mishap.RUN_REFUSED, Mishap.RUN_LOST, Mishap.RESULT_LOST, Mishap.STEP_FAILED}
"""Mishaps after which RL sends the rollout again."""
_OF_RUNS = [Mishap.RUN_REFUSED, Mishap.RUN_LOST, Mishap.RESULT_LOST, *[None] * 15]
_OF_PHASES = [Mishap.ANSWER_LOST, Mishap.ANSWER_LOST, Mishap.CANCELLED, *[None] * 29]
_OF_STEPS = [Mishap.STEP_FAILED, *[Mishap.STEP_REPEATED] * 3, *[None] * 36]


@dataclass
class Mishaps:
    """Decides, for one execution, which calls go wrong and how."""

    seed: int
    slow_s: float
    """Longest delay of an acknowledgement, and time that a lost `/run` is left to run."""
    active: bool = True
    """False: nothing goes wrong."""
    met: Counter[Mishap] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Failed runs by rollout."""
    acknowledging: int = 0
    """Acknowledgements in flight now."""
    _seen: set[str] = field(default_factory=set)
    _going_on: set[asyncio.Future[None]] = field(default_factory=set)

    def around(self, app: App, kind: Kind) -> App:
        """Wrap an application, so that its calls meet mishaps."""

        async def with_mishaps(scope: Scope, receive: Receive, send: Send) -> None:
            if not self.active or scope["type"] != "http" or kind is Kind.MODEL:
                await app(scope, receive, send)
            elif scope["path"].endswith("/checkpoint/v1/acknowledge"):
                await self._acknowledge(app, scope, receive, send)
            else:
                await self._call(app, scope, receive, send)

        return with_mishaps

    def of_phase(self, workflow: str, phase: str) -> Mishap | None:
        """The mishap of an activity's first try, if any."""
        mishap = self._pick(_OF_PHASES, workflow, phase) if self.active else None
        if mishap is Mishap.CANCELLED and phase not in CANCELLABLE:
            return None
        if mishap is not None:
            self.met[mishap] += 1
        return mishap

    async def _acknowledge(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        late = self._draw("acknowledge", len(self._seen)) % 3
        self._seen.add(f"acknowledge {len(self._seen)}")
        self.acknowledging += 1
        log.info("acknowledge", extra={"event": "acknowledge", "state": "begin"})
        try:
            await asyncio.sleep(self.slow_s if late == 1 else 0)
            delayed = _DelayedAnswer(send)
            await app(scope, receive, delayed)
            await asyncio.sleep(self.slow_s if late == 2 else 0)
            await delayed.release()
        finally:
            self.acknowledging -= 1
            log.info("acknowledge", extra={"event": "acknowledge", "state": "end"})

    async def _call(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name.decode(): value.decode() for name, value in scope["headers"]}
        identity = Identity.from_headers(names)
        mishap = None if identity is None else self._of(scope["path"], identity)
        if mishap is None or identity is None:
            await app(scope, receive, send)
            return
        delayed = _DelayedAnswer(send)
        if mishap in (Mishap.RUN_LOST, Mishap.RESULT_LOST, Mishap.STEP_REPEATED):
            limit_s = self.slow_s if mishap is Mishap.RUN_LOST else None
            task = asyncio.ensure_future(app(scope, receive, delayed))
            self._going_on.add(task)
            task.add_done_callback(self._going_on.discard)
            await asyncio.wait({task}, timeout=limit_s)
            if delayed.status not in (None, 200):
                await delayed.release()  # it failed by itself: the next try may meet the mishap
                return
        self.met[mishap] += 1
        if mishap in FAILING:
            self.failed[identity.rollout_id] += 1
        ids = {"rollout_id": identity.rollout_id, "attempt": identity.attempt}
        log.info("mishap", extra={"event": "mishap", "mishap": mishap.value, **ids})
        error = _error(mishap)
        await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)

    def _of(self, path: str, identity: Identity) -> Mishap | None:
        if path == "/run":
            return self._pick(_OF_RUNS, identity.rollout_id, identity.attempt)
        if identity.model_call_id is None or identity.request_id in self._seen:
            return None
        self._seen.add(str(identity.request_id))
        return self._pick(_OF_STEPS, path, identity.request_id)

    def _pick(self, choices: list[Any], *about: object) -> Mishap | None:
        found: Mishap | None = choices[self._draw(*about) % len(choices)]
        return found

    def _draw(self, *about: object) -> int:
        text = "/".join(map(str, (self.seed, *about)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


class _DelayedAnswer:
    """An answer that is not sent yet."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self._messages.append(message)

    @property
    def status(self) -> int | None:
        """The answer's status; None: there is none yet."""
        return self._messages[0]["status"] if self._messages else None

    async def release(self) -> None:
        for message in self._messages:
            await self._send(message)


def _error(mishap: Mishap) -> TurnpointError:
    match mishap:
        case Mishap.STEP_FAILED:
            return SessionLost("a mishap of the twin run")
        case Mishap.STEP_REPEATED:
            return CheckpointParked("a mishap of the twin run")
        case _:
            return ServerFault("a mishap of the twin run")
