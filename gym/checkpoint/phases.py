"""Where a participant stands: phase, the id that holds it, the lease, and whose process it is.

    closed -> open -> preparing -> prepared -> committed -> open
    awaiting_restore -> restoring -> restored -> open

Guarantees: an id that has ended is remembered and can do nothing any more; opening ends the
hold, its lease and its threads in one step. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any
from uuid import uuid4

from gym.checkpoint.operation import Hold, StaleIds
from gym.lease import Lease
from gym.protocol import (
    CheckpointConflict,
    InvalidPhase,
    NotJoined,
    Phase,
    StaleIncarnation,
    StaleInstance,
    StatusRequest,
)

log = logging.getLogger("turnpoint.gym")

SAVING = (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED)
RESTORABLE = (Phase.AWAITING_RESTORE, Phase.RESTORING, Phase.RESTORED)


class Standing:
    """The state that saving, restoring and admission share.

    Args:
        name: Name of the server in the job.
        expect_restore: Start in `awaiting_restore` instead of `closed`.
        never_closes: Whether admission stays open during saves (an auxiliary model server).
        on_open: Called after the phase became open.
    """

    def __init__(
        self,
        name: str,
        *,
        expect_restore: bool,
        never_closes: bool,
        on_open: Callable[[], None],
    ) -> None:
        """A new instance that has joined no job."""
        self.name = name
        self.instance_id = uuid4().hex
        self.job_id: str | None = None
        self.incarnation: int | None = None
        self.phase = Phase.AWAITING_RESTORE if expect_restore else Phase.CLOSED
        """As it is; `look` ends a lease first."""
        self.hold: Hold | None = None
        self.stale = StaleIds()
        self.lease = Lease(self._lease_ended)
        self.never_closes = never_closes
        self._on_open = on_open
        self._waiters: set[asyncio.Future[None]] = set()
        self._opened = asyncio.Event()

    # --- asking -------------------------------------------------------------------------------

    def look(self) -> Phase:
        """The phase, after the lease was looked at."""
        self.lease.check()
        return self.phase

    @property
    def is_open(self) -> bool:
        """Whether new work is accepted."""
        phase = self.look()
        return phase is Phase.OPEN or (self.never_closes and phase in SAVING)

    @property
    def holder(self) -> str | None:
        """The checkpoint or restore id that holds the server."""
        return self.hold.id if self.hold else None

    def check(self, request: StatusRequest, *, joined: bool = True) -> None:
        """Look at the lease, then refuse a request that is not for this life of the server.

        Args:
            request: Any control request.
            joined: Whether the server must have joined a job.

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
                raise NotJoined("the server has joined no job yet")
        elif request.incarnation != self.incarnation:
            raise StaleIncarnation(
                "the server has joined another incarnation",
                details={"incarnation": self.incarnation},
            )

    def held_by(self, operation_id: str, phases: Collection[Phase]) -> Hold:
        """The hold of this id.

        Raises:
            CheckpointConflict: Another id holds the server.
            InvalidPhase: None does, or the phase is not one of `phases`.
        """
        if self.hold is not None and self.hold.id != operation_id:
            raise CheckpointConflict("another id holds the server", details=self.where())
        if self.hold is None or self.phase not in phases:
            raise InvalidPhase(f"not in phase {self.phase.value}", details=self.where())
        return self.hold

    def who(self) -> dict[str, Any]:
        """The fields that every answer has."""
        return {
            "server": self.name,
            "instance_id": self.instance_id,
            "incarnation": self.incarnation,
            "phase": self.phase,
        }

    def where(self) -> dict[str, Any]:
        """Details of a refusal: the phase, and who holds the server."""
        return {"phase": self.phase.value, "checkpoint_id": self.holder}

    # --- changing -----------------------------------------------------------------------------

    def begin(self, operation_id: str, phase: Phase) -> None:
        """Let an id hold the server from now on, in `phase`."""
        self.hold = Hold(operation_id)
        self.phase = phase
        if not self.is_open:
            self._opened.clear()

    def open(self) -> None:
        """Open, whoever held the server; that id can do nothing here any more."""
        self.end_hold()
        self.hold = None
        self.lease.release()
        self.phase = Phase.OPEN
        self._opened.set()
        self.changed()
        self._on_open()

    def end_hold(self) -> None:
        """End what the holding id may do; it keeps holding the server until that is cleared."""
        if self.hold is not None:
            self.stale.add(self.hold.id)
            self.hold.end()

    def await_restore(self) -> None:
        """Nothing holds the server; it waits for a restore."""
        self.hold = None
        self.phase = Phase.AWAITING_RESTORE

    def _lease_ended(self) -> None:
        log.warning("lease", extra={"event": "lease_ended", "checkpoint_id": self.holder})
        self.open()

    # --- waiting ------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something that somebody may wait for has changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self, within_s: float) -> None:
        """Return at the next change, or after `within_s`; the caller looks which."""
        # A future made here and now: an event that is set and cleared before a waiting task
        # has run would not be seen.
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=within_s)
        finally:
            self._waiters.discard(waiter)

    async def wait_open(self) -> None:
        """Return when new work is accepted."""
        while not self.is_open:
            await self._opened.wait()
