"""A resource server's part of checkpoints: its sessions, their receipts, and the fences.

Guarantees: sessions are bound to (rollout, run); the first call of run n+1 ends run n; a lost
session is an error, never a fresh one; a session is exported between mutations. Steps are
admitted while the server is `preparing` (resources close last, so that a save never refuses a
step) and refused from `prepared` on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from gym.checkpoint.fences import Fences
from gym.checkpoint.phases import Phases
from gym.protocol import (
    Blocker,
    CommitRequest,
    Counts,
    Holdings,
    Identity,
    IdentityMismatch,
    Kind,
    Mode,
    Phase,
    RequestConflict,
    Role,
    SessionLost,
    WrittenFile,
)
from gym.resource.anonymous_sessions import AnonymousSessions, unrepeatable
from gym.resource.environment import BaseEnvironment
from gym.resource.session import Mutation, Receipt, Refused, Result, SavedSession, Session
from gym.resource.sessions_file import SessionsExport, read_sessions

Handler = Callable[[Session[Any]], Awaitable[Result]]


class ResourcePart:
    """The sessions of one resource server.

    Args:
        phases: The server's state machine.
        environment: The author's code.
    """

    kind = Kind.RESOURCE
    role: Role | None = None

    def __init__(self, phases: Phases, environment: BaseEnvironment[Any]) -> None:
        self._phases = phases
        self._environment = environment
        self.mode = environment.mode
        self._keeps_sessions = self.mode is not Mode.STATELESS
        """A stateless server's session of another life is as good as one of this."""
        self._sessions: dict[str, Session[Any]] = {}
        self._anonymous = AnonymousSessions()
        self._fences = Fences()

    # --- calls --------------------------------------------------------------------------------

    async def mutate(
        self, mutation: Mutation, handler: Handler, *, cookie: str | None
    ) -> tuple[Session[Any], Receipt]:
        """Apply one mutation exactly once.

        Args:
            mutation: The caller and the digest of what it asks; `seed` begins the session.
            handler: The author's code for it.
            cookie: Session id of the call's cookie, if it has one.

        Returns:
            The session after the call, and its answer.

        Raises:
            StaleAttempt: A newer run of this rollout has been seen.
            CheckpointParked: The server is closed; the call is to be issued again later.
            SessionLost: This process knows no session of this run, or the cookie names another.
            RequestConflict: The request id came with another body.
            SessionUncertain: An earlier mutation ended in an unknown state.
        """
        identity = mutation.identity
        self._fences.require_current(identity)
        if self._phases.phase not in (Phase.OPEN, Phase.PREPARING):
            raise self._phases.parked()
        if self._fences.admit(identity):
            self._end(identity.rollout_id)
        session = self._session(mutation)
        if cookie not in (None, session.id) and mutation.where != "seed" and self._keeps_sessions:
            if cookie in self._anonymous:
                raise IdentityMismatch("the session was made without identity")
            raise SessionLost("the cookie names another session than this run's")
        return session, await self._apply(session, mutation, handler, identity)

    async def mutate_anonymous(
        self, where: str, body_sha256: str, handler: Handler, *, cookie: str | None
    ) -> tuple[Session[Any], Receipt]:
        """Apply one mutation of a caller without identity, which has waited until now.

        Raises:
            IdentityMismatch: The cookie names a rollout's session.
            SessionLost: It names none.
            SessionUncertain: An earlier mutation ended in an unknown state.
        """
        incarnation = self._phases.incarnation
        assert incarnation is not None  # the call has waited until the server was open
        known = self._anonymous
        if where == "seed" or (cookie not in known and not self._keeps_sessions):
            session = known.begin(seeded=where != "seed")
        else:
            session = known.of(cookie, {one.id for one in self._sessions.values()})
        mutation = unrepeatable(incarnation, where, body_sha256)
        receipt = await self._apply(session, mutation, handler, None)
        session.forget(mutation.request_id)
        return session, receipt

    async def _apply(
        self, session: Session[Any], mutation: Mutation, handler: Handler, caller: Identity | None
    ) -> Receipt:
        async def on_session() -> Result:
            # Asked when it is this mutation's turn: the seed may still be running before it.
            if mutation.where != "seed" and not session.seeded:
                raise Refused.with_error(SessionLost("the session of this run was not seeded"))
            result = await handler(session)
            session.seeded = True
            return result

        return await session.apply(
            mutation,
            on_session,
            in_flight=self._phases.calls.count(caller, mutation.where),
            errors_free_of_effect=self._environment.errors_free_of_effect,
        )

    def _session(self, mutation: Mutation) -> Session[Any]:
        """The session that a mutation is for; `seed` makes one."""
        identity = mutation.identity
        session = self._sessions.get(identity.rollout_id)
        if session is not None:
            if mutation.where == "seed" and session.seeded and not session.knows(mutation):
                raise RequestConflict("this run has a seeded session already")
            return session
        if mutation.where != "seed" and self._keeps_sessions:
            raise SessionLost("no session of this run; it was never seeded here, or was lost")
        session = Session(identity.rollout_id, identity.attempt)
        session.seeded = mutation.where != "seed"
        self._sessions[identity.rollout_id] = session
        return session

    def _end(self, rollout_id: str) -> None:
        if (session := self._sessions.pop(rollout_id, None)) is not None:
            # A mutation that runs goes on to its end, on a session that no call finds any more.
            session.ended = True

    # --- the part (`gym.checkpoint.part.Part`) ------------------------------------------------

    def counts(self) -> Counts:
        """Number of sessions."""
        return Counts(sessions=len(self._sessions))

    def blockers(self) -> list[Blocker]:
        """None of its own: mutations are calls in flight."""
        return []

    def export(self, request: CommitRequest) -> SessionsExport:
        """The sessions there are; each one's state is taken while it is written."""
        return SessionsExport(self._environment, list(self._sessions.values()))

    def read(self, folder: Path, files: list[WrittenFile]) -> list[tuple[SavedSession, Any]]:
        """The saved sessions with their states; raises like `read_sessions`."""
        return read_sessions(self._environment, folder, files)

    def install(self, loaded: list[tuple[SavedSession, Any]]) -> Holdings:
        """Take the sessions over as runs n+1."""
        sessions = {}
        for saved, state in loaded:
            session: Session[Any] = Session(
                saved.rollout_id, saved.attempt_index + 1, session_id=saved.session_id
            )
            session.restore(saved, state)
            sessions[saved.rollout_id] = session
        self._sessions = sessions
        self._fences.clear()
        for session in sessions.values():
            self._fences.raise_to(session.rollout_id, session.attempt)
        return Holdings(
            counts=self.counts(), sessions=[session.entry for session in sessions.values()]
        )

    def drop(self) -> None:
        """Drop all sessions and fences."""
        self._sessions = {}
        self._anonymous.clear()
        self._fences.clear()

    def discard(self, rollout_ids: Collection[str]) -> None:
        """Drop these rollouts' sessions; their runs n+1 stay admissible."""
        for rollout_id in rollout_ids:
            self._end(rollout_id)

    def forget(self, rollout_ids: Collection[str]) -> None:
        """Drop sessions, receipts and fences of finished rollouts."""
        self.discard(rollout_ids)
        self._fences.forget(rollout_ids)
