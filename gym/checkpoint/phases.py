"""The state machine of a participant: phase, owner, lease, and the job that it has joined.

    closed -> open -> preparing -> prepared -> committed -> open
    awaiting_restore -> restoring -> restored -> open

Guarantees: the lease is checked before the phase is read, so an ended checkpoint never keeps the
server closed; an id that has ended is remembered and can do nothing any more; opening ends the
operation and its lease in one step. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from gym.checkpoint.in_flight import CallsInFlight
from gym.checkpoint.operation import Operation
from gym.ended_ids import EndedIds
from gym.lease import Lease
from gym.protocol import (
    CheckpointConflict,
    CheckpointParked,
    Identity,
    InvalidPhase,
    NotJoined,
    Phase,
    StaleAttempt,
    StaleIncarnation,
    StaleInstance,
    StatusRequest,
)

log = logging.getLogger("turnpoint.gym")

SAVING = (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED)
RESTORABLE = (Phase.AWAITING_RESTORE, Phase.RESTORING, Phase.RESTORED)


class Phases:
    """The state that save, restore and admission share; a new instance has joined no job.

    Args:
        name: Name of the server in the job.
        expect_restore: Start in `awaiting_restore` instead of `closed`.
        never_closes: Admission stays open during saves (an auxiliary model server).
    """

    def __init__(
        self, name: str, *, expect_restore: bool = False, never_closes: bool = False
    ) -> None:
        self.name = name
        self.instance_id = uuid4().hex
        """New at each start of the process."""
        self.job_id: str | None = None
        self.incarnation: int | None = None
        """The incarnation joined, or None."""
        self.operation: Operation | None = None
        """The save or restore that owns the server."""
        self.ended_ids: EndedIds[None] = EndedIds(lambda: None)
        self.lease = Lease(self._lease_ended)
        self.never_closes = never_closes
        self.calls = CallsInFlight(on_end=self.changed)
        self._phase = Phase.AWAITING_RESTORE if expect_restore else Phase.CLOSED
        self._waiters: set[asyncio.Future[None]] = set()
        self._next_opening = asyncio.Event()

    # --- asking -------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The phase, after the lease was checked."""
        self.lease.check()
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase

    @property
    def is_open(self) -> bool:
        """True if new work is accepted."""
        phase = self.phase
        return phase is Phase.OPEN or (self.never_closes and phase in SAVING)

    @property
    def owner(self) -> str | None:
        """The checkpoint or restore id that owns the server."""
        return self.operation.id if self.operation else None

    def who(self) -> dict[str, Any]:
        """The fields that every answer has."""
        return {
            "server": self.name,
            "instance_id": self.instance_id,
            "incarnation": self.incarnation,
            "phase": self.phase,
        }

    def where(self) -> dict[str, Any]:
        """Details of a refusal: the phase and the owner."""
        return {"phase": self.phase.value, "checkpoint_id": self.owner}

    # --- data-plane calls ---------------------------------------------------------------------

    def identify(self, headers: Mapping[str, str]) -> Identity | None:
        """Identity of a call; None if it carries none of the headers.

        Raises:
            NotJoined: The server belongs to no job yet.
            StaleAttempt: The call is of another incarnation.
            IdentityMismatch: Headers are missing or malformed.
        """
        identity = Identity.from_headers(headers)
        if identity is None:
            return None
        if self.incarnation is None:
            raise _not_joined()
        if identity.incarnation != self.incarnation:
            raise StaleAttempt(
                "the call is of another incarnation",
                details={"incarnation": identity.incarnation, "current": self.incarnation},
            )
        return identity

    def require_open(self) -> None:
        """Raise unless new work is accepted.

        Raises:
            NotJoined: The server belongs to no job yet.
            CheckpointParked: A save or a restore owns it; the call is to be issued again later.
        """
        if not self.is_open:
            raise self.parked()

    def parked(self) -> CheckpointParked | NotJoined:
        """The refusal of a call that meets a closed server."""
        if self.incarnation is None:
            return _not_joined()
        return CheckpointParked(
            "admission is closed; issue the same call again", details=self.where()
        )

    # --- control requests ---------------------------------------------------------------------

    def require_addressed(self, request: StatusRequest, *, joined: bool = True) -> None:
        """Check the lease, then raise unless a request is for this life of the server.

        Args:
            request: Any control request.
            joined: True if the server must have joined a job.

        Raises:
            StaleInstance: The request is for another life of the process.
            NotJoined: The server belongs to no job yet.
            StaleIncarnation: The request carries another incarnation.
        """
        self.lease.check()
        if request.instance_id != self.instance_id:
            raise StaleInstance(
                "this is another life of the server", details={"instance_id": self.instance_id}
            )
        if self.incarnation is None:
            if joined:
                raise _not_joined()
        elif request.incarnation != self.incarnation:
            raise StaleIncarnation(
                "the server has joined another incarnation",
                details={"incarnation": self.incarnation},
            )

    def require_operation(self, operation_id: str, phases: Collection[Phase]) -> Operation:
        """The operation of this id.

        Raises:
            CheckpointConflict: Another id owns the server.
            InvalidPhase: No id owns it, or the phase is not one of `phases`.
        """
        if self.operation is not None and self.operation.id != operation_id:
            raise CheckpointConflict("another id owns the server", details=self.where())
        if self.operation is None or self.phase not in phases:
            raise InvalidPhase(f"not in phase {self.phase.value}", details=self.where())
        return self.operation

    # --- changing -----------------------------------------------------------------------------

    def begin(self, operation_id: str, phase: Phase) -> None:
        """Let an id own the server from now on, in `phase`."""
        self.operation = Operation(operation_id)
        self.phase = phase

    def open(self) -> None:
        """Open; the id that owned the server can do nothing here any more."""
        self.end_operation()
        self.operation = None
        self.lease.release()
        self.phase = Phase.OPEN
        self._next_opening.set()
        self._next_opening = asyncio.Event()
        self.changed()

    def end_operation(self) -> None:
        """End what the owner may do; it stays the owner until `open` or `await_restore`."""
        if self.operation is not None:
            self.ended_ids.add(self.operation.id)
            self.operation.ended.set()

    def await_restore(self) -> None:
        """Let no id own the server; it waits for a restore."""
        self.operation = None
        self.phase = Phase.AWAITING_RESTORE

    def _lease_ended(self) -> None:
        log.warning("lease", extra={"event": "lease_ended", "checkpoint_id": self.owner})
        self.open()

    # --- waiting ------------------------------------------------------------------------------

    def changed(self) -> None:
        """Wake a `prepare` and a `commit`: what they wait for may have changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s`; the caller looks which."""
        # A future made here and now: an event that is set and cleared before a waiting task
        # has run would not be seen.
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    async def wait_open(self) -> None:
        """Return when new work is accepted."""
        while not self.is_open:
            await self._next_opening.wait()

    async def next_opening(self, timeout_s: float) -> None:
        """Return at the next opening, or after `timeout_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._next_opening.wait(), timeout_s)


def _not_joined() -> NotJoined:
    return NotJoined("the server has joined no job yet")
