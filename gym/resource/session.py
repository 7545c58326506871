"""One session of a resource server: exactly-once mutations (design section 6).

Guarantees: one mutation at a time; once begun it runs to its end even if the caller leaves;
the revision rises by one only on success; the same request id again gets the same answer,
errors too, and has no second effect; with another body it is refused. A handler that raises
leaves the session uncertain, unless its errors are declared free of effect: an uncertain session
refuses every further mutation.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, cast
from uuid import uuid4

from pydantic import BaseModel, Field

from gym.logs import log_fault
from gym.protocol import (
    SCHEMA_VERSION,
    UNCERTAIN_REVISION,
    Identity,
    SessionEntry,
    SessionUncertain,
    StaleAttempt,
    TurnpointError,
    Wire,
)
from gym.protocol.identity import RolloutId
from gym.protocol.records import Sha256
from gym.single_flight import SingleFlight

log = logging.getLogger("turnpoint.gym")
S = TypeVar("S")
Result = BaseModel | dict[str, Any]


class Refused(Exception):
    """Raised by a handler that refuses a call and vouches that nothing took effect.

    Args:
        detail: Reason, as the caller (in the end: the model) is told it.
        status: HTTP status of the answer.
    """

    def __init__(self, detail: str, *, status: int = 400) -> None:
        super().__init__(f"refused with status {status}")
        self.status = status
        self.body: dict[str, Any] = {"detail": detail}

    @classmethod
    def with_error(cls, error: TurnpointError) -> Refused:
        """The same, answered as a typed error of this protocol."""
        refused = cls(error.message, status=error.status)
        refused.body = error.body()
        return refused


class Receipt(Wire):
    """Question and answer of a mutation."""

    request_id: str
    body_sha256: Sha256
    status: int
    answer: str
    """The JSON text, so that a repeat gets the same bytes."""


class SavedSession(Wire):
    """One line of `sessions.jsonl`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    rollout_id: RolloutId
    attempt_index: Annotated[int, Field(ge=0)]
    session_id: str
    revision: Annotated[int, Field(ge=0)]
    state: str
    """The author's `export_state`, in base64."""
    receipts: list[Receipt]


@dataclass(frozen=True)
class Mutation:
    """One call that changes a session, before it is begun."""

    identity: Identity
    where: str
    """`seed`, `tool`, `step` or `verify`."""
    body_sha256: str
    """Digest of route and body."""

    @property
    def request_id(self) -> str:
        """The id that makes it happen once; there always is one (checked at the route)."""
        assert self.identity.request_id is not None
        return self.identity.request_id


class Session(Generic[S]):
    """State of one rollout's run on this server; a new one is unseeded, at revision 0."""

    def __init__(self, rollout_id: str, attempt: int, *, session_id: str | None = None) -> None:
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.id = session_id or uuid4().hex
        self.state: S = cast(S, None)
        """Assigned by the seed. Other handlers are called on seeded sessions alone."""
        self.seeded = False
        self.revision = 0
        self.uncertain = False
        self.ended = False
        """A newer run has taken over, or the rollout is forgotten."""
        self.lock = asyncio.Lock()
        """Locked while a mutation runs, and while the state is exported."""
        self._mutations: SingleFlight[str] = SingleFlight("this request id")

    @property
    def entry(self) -> SessionEntry:
        """This session in an inventory."""
        revision = UNCERTAIN_REVISION if self.uncertain else self.revision
        return SessionEntry(
            rollout_id=self.rollout_id, attempt_index=self.attempt, revision=revision
        )

    @property
    def receipts(self) -> list[Receipt]:
        """Receipts of all mutations that have ended, oldest first."""
        return self._mutations.answers

    def knows(self, mutation: Mutation) -> bool:
        """True if this request id has ended or runs."""
        return mutation.request_id in self._mutations

    def forget(self, request_id: str) -> None:
        """Drop the receipt of a mutation that is never asked for again."""
        self._mutations.forget(request_id)

    def restore(self, saved: SavedSession, state: S) -> None:
        """Take over a saved session's state, revision and receipts."""
        self.state, self.seeded, self.revision = state, True, saved.revision
        for receipt in saved.receipts:
            self._record(receipt)

    async def apply(
        self,
        mutation: Mutation,
        handler: Callable[[], Awaitable[Result]],
        *,
        in_flight: AbstractContextManager[None],
        errors_free_of_effect: bool,
    ) -> Receipt:
        """Apply a mutation once, or answer what it was answered before.

        Args:
            mutation: The caller, and the digest of what it asks.
            handler: Does it; runs in a task of its own, alone on this session.
            in_flight: Entered at once if the mutation is new, left when it has ended.
            errors_free_of_effect: True if an error of the handler leaves the session as it was.

        Raises:
            RequestConflict: The request id came with another body before.
            SessionUncertain: An earlier mutation ended in an unknown state.
        """
        if self.uncertain and not self.knows(mutation):
            raise _uncertain()
        return await self._mutations.run(
            mutation.request_id,
            mutation.body_sha256,
            lambda: self._run(mutation, handler, errors_free_of_effect),
            during=in_flight,
        )

    async def _run(
        self,
        mutation: Mutation,
        handler: Callable[[], Awaitable[Result]],
        errors_free_of_effect: bool,
    ) -> Receipt:
        async with self.lock:
            status, answer = await self._answer(mutation, handler, errors_free_of_effect)
            receipt = Receipt(
                request_id=mutation.request_id,
                body_sha256=mutation.body_sha256,
                status=status,
                answer=answer,
            )
            # Under the lock: an export finds state, revision and receipt together.
            self._record(receipt)
            return receipt

    def _record(self, receipt: Receipt) -> None:
        self._mutations.put(receipt.request_id, receipt.body_sha256, receipt)

    async def _answer(
        self,
        mutation: Mutation,
        handler: Callable[[], Awaitable[Result]],
        errors_free_of_effect: bool,
    ) -> tuple[int, str]:
        """Run the handler; status and JSON text of its answer."""
        try:
            if self.ended:
                raise Refused.with_error(StaleAttempt("a newer run of this rollout exists"))
            if self.uncertain:
                raise Refused.with_error(_uncertain())
            answer = _text(await handler())
        except Refused as refused:
            return refused.status, _text(refused.body)
        except BaseException as error:
            if _process_ends(error):
                raise
            log_fault(error, mutation.where)
            if errors_free_of_effect:
                # The environment's own answer, so that the model is shown it.
                return 500, _text({"detail": type(error).__name__})
            self.uncertain = True
            uncertain = _uncertain()
            return uncertain.status, _text(uncertain.body())
        self.revision += 1
        log.info(
            "mutation",
            extra={
                "event": "mutation",
                "rollout_id": self.rollout_id,
                "attempt": self.attempt,
                "request_id": mutation.request_id,
                "revision": self.revision,
            },
        )
        return 200, answer


def _process_ends(error: BaseException) -> bool:
    """True if the mutation ends with its process.

    Only the end of the process cancels a mutation: any other `CancelledError` is that of something
    which the handler awaited, half way through its code.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit)


def _uncertain() -> SessionUncertain:
    return SessionUncertain("a mutation of this session ended in an unknown state")


def _text(result: Result) -> str:
    plain = result.model_dump(mode="json") if isinstance(result, BaseModel) else result
    return json.dumps(plain, ensure_ascii=True, allow_nan=False)
