"""A Gym server's place in checkpoints and restores: what all three kinds share (section 6).

Guarantees: the lease is looked at before anything is served, so an ended checkpoint never holds
the server; a call is told apart by incarnation; control requests by incarnation and instance.
The phases are in `gym.checkpoint.phases`, a save in `gym.checkpoint.save`, a restore in
`gym.checkpoint.restore`; what is saved is the `Part`'s. Used on one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import cast

from gym.checkpoint.in_flight import CallsInFlight
from gym.checkpoint.part import Acknowledging, Part
from gym.checkpoint.phases import RESTORABLE, Standing
from gym.checkpoint.restore import Restoring
from gym.checkpoint.save import Saving
from gym.protocol import (
    AcknowledgeRequest,
    Answer,
    Blocker,
    Capabilities,
    CheckpointParked,
    CommitAnswer,
    CommitRequest,
    Counts,
    DiscardRequest,
    ForgetRequest,
    Identity,
    JoinRequest,
    Kind,
    NotImplementedYet,
    NotJoined,
    Phase,
    PrepareAnswer,
    PrepareRequest,
    RenewAnswer,
    RenewRequest,
    ResetRequest,
    RestoreAnswer,
    RestoreRequest,
    ResumeAnswer,
    ResumeRequest,
    Role,
    StaleAttempt,
    StaleIncarnation,
    Status,
    StatusRequest,
)
from gym.protocol.control import MAX_BLOCKERS
from gym.server.anonymous_calls import hold
from gym.server.settings import ServerSettings


class Participant:
    """One Gym server's place in checkpoints and restores.

    Args:
        name: Name of the server in the job.
        part: The state behind it.
        settings: Where folders are accepted, and whether a restore is expected.
    """

    def __init__(self, name: str, part: Part, settings: ServerSettings) -> None:
        """Start closed, or awaiting a restore; a new instance."""
        self.name = name
        self.part = part
        self.settings = settings
        self._standing = Standing(
            name,
            expect_restore=settings.expect_restore,
            never_closes=part.role is Role.AUXILIARY,
            on_open=part.opened,
        )
        self._calls = CallsInFlight(self._standing.changed)
        self._saving = Saving(
            self._standing,
            part,
            settings.snapshot_root,
            blockers=self.blockers,
            counts=self.counts,
        )
        self._restoring = Restoring(self._standing, part, settings.snapshot_root)

    # --- for the data plane -------------------------------------------------------------------

    @property
    def instance_id(self) -> str:
        """New at each start of the process."""
        return self._standing.instance_id

    @property
    def incarnation(self) -> int | None:
        """The incarnation joined, or None."""
        return self._standing.incarnation

    @property
    def phase(self) -> Phase:
        """Where the server stands; the lease is looked at first."""
        return self._standing.look()

    @property
    def is_open(self) -> bool:
        """Whether new work is accepted; an auxiliary model server stays open during saves."""
        return self._standing.is_open

    @property
    def holder(self) -> str | None:
        """The checkpoint or restore id that holds the server."""
        return self._standing.holder

    def identify(self, headers: Mapping[str, str]) -> Identity | None:
        """Whose call this is.

        Returns:
            The identity, or None if the call carries none of the headers.

        Raises:
            NotJoined: The server belongs to no job yet.
            StaleAttempt: The call is of another incarnation.
            IdentityMismatch: Headers are missing or malformed.
        """
        identity = Identity.from_headers(headers)
        if identity is None:
            return None
        if self.incarnation is None:
            raise NotJoined("the server has joined no job yet")
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
            CheckpointParked: A checkpoint or a restore holds it; come back later.
        """
        if not self.is_open:
            raise self.parked()

    def parked(self) -> CheckpointParked | NotJoined:
        """The refusal of a call that meets a closed server."""
        if self.incarnation is None:
            return NotJoined("the server has joined no job yet")
        return CheckpointParked(
            "admission is closed; issue the same call again", details=self._standing.where()
        )

    async def wait_open(self) -> None:
        """Return when new work is accepted."""
        await self._standing.wait_open()

    async def hold(self, where: str, hung_up: Callable[[], Awaitable[object]]) -> None:
        """Hold a call without identity until new work is accepted.

        See `gym.server.anonymous_calls`.
        """
        await hold(self._standing, where, hung_up)

    def changed(self) -> None:
        """To be called whenever the part's blockers may have changed: wakes a `prepare`."""
        self._standing.changed()

    def in_flight(
        self, identity: Identity | None, where: str, *, blocks: bool = True
    ) -> AbstractContextManager[None]:
        """Count a data-plane call while it runs.

        Args:
            identity: Whose call it is.
            where: `model_call`, `tool`, `seed`, `verify`, ...: how a blocker names it.
            blocks: Whether `prepare` waits for it; else it is only counted.
        """
        return self._calls.count(identity, where, blocks=blocks)

    # --- what it says about itself ------------------------------------------------------------

    def counts(self) -> Counts:
        """What the server holds, by state."""
        return self.part.counts().model_copy(update={"in_flight": len(self._calls)})

    def blockers(self) -> list[Blocker]:
        """What keeps the server from being ready, oldest first."""
        if self._standing.never_closes:
            return []
        found = [*self.part.blockers(), *self._calls.blockers(), *self._saving.writer()]
        return sorted(found, key=lambda blocker: -blocker.age_s)

    def capabilities(self) -> Capabilities:
        """`GET capabilities`; needs no join."""
        return Capabilities(
            **self._standing.who(),
            kind=self.part.kind,
            mode=self.part.mode,
            role=self.part.role,
            worker_processes=self.settings.worker_processes,
        )

    def status(self, request: StatusRequest) -> Status:
        """`GET status`; answered before a join too."""
        self._standing.check(request, joined=False)
        blockers = self.blockers()
        return Status(
            **self._standing.who(),
            checkpoint_id=self.holder,
            lease_left_s=self._standing.lease.left_s,
            counts=self.counts(),
            blockers=blockers[:MAX_BLOCKERS],
            blocker_count=len(blockers),
        )

    # --- control ------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> Answer:
        """Become part of a job's incarnation; idempotent per incarnation.

        Raises:
            StaleIncarnation: Another job, an older incarnation, or (from open on) any other.
        """
        standing = self._standing
        phase, known = standing.look(), standing.incarnation
        if known is not None and (
            request.job_id != standing.job_id
            or request.incarnation < known
            or (request.incarnation != known and phase not in RESTORABLE)
        ):
            raise StaleIncarnation(
                "the server has joined another incarnation",
                details={"job_id": standing.job_id, "incarnation": known},
            )
        if request.incarnation != known:
            standing.job_id, standing.incarnation = request.job_id, request.incarnation
            standing.end_hold()
            if phase is Phase.CLOSED:
                standing.open()
        # A repeat waits as well until nothing of the older incarnation is left.
        if standing.hold is not None and standing.hold.ended.is_set():
            await self._restoring.dismantled(standing.hold)
        if standing.incarnation != request.incarnation:
            raise StaleIncarnation("a newer incarnation joined meanwhile")
        return Answer(**standing.who())

    async def prepare(self, request: PrepareRequest) -> PrepareAnswer:
        """See `Saving.prepare`."""
        return await self._saving.prepare(request)

    def renew(self, request: RenewRequest) -> RenewAnswer:
        """See `Saving.renew`."""
        return self._saving.renew(request)

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """See `Saving.commit`."""
        return await self._saving.commit(request)

    def resume(self, request: ResumeRequest) -> ResumeAnswer:
        """See `Saving.resume`."""
        return self._saving.resume(request)

    async def restore(self, request: RestoreRequest) -> RestoreAnswer:
        """See `Restoring.restore`."""
        return await self._restoring.restore(request)

    async def reset(self, request: ResetRequest) -> Answer:
        """See `Restoring.reset`."""
        return await self._restoring.reset(request)

    def discard(self, request: DiscardRequest) -> Answer:
        """See `Restoring.discard`."""
        return self._restoring.discard(request)

    def acknowledge(self, request: AcknowledgeRequest) -> Answer:
        """Release a finished result (agents only); of something no longer there it is a success.

        Raises:
            ResultConflict: The result has another digest.
        """
        self._standing.check(request)
        if self.part.kind is not Kind.AGENT:
            raise NotImplementedYet("only agents keep results")
        cast(Acknowledging, self.part).acknowledge(request)
        self.changed()
        return Answer(**self._standing.who())

    def forget(self, request: ForgetRequest) -> Answer:
        """Drop fences and receipts of rollouts that are finished for good."""
        self._standing.check(request)
        self.part.forget(request.rollout_ids)
        self.changed()
        return Answer(**self._standing.who())

    def shut_down(self) -> None:
        """The process ends: what runs under a hold ends with it, and no timer is left."""
        self._standing.end_hold()
        self._standing.lease.release()
