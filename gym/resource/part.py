"""A resource server's part of checkpoints: its sessions, their receipts, and the fences.

Guarantees: sessions are bound to (rollout, run); the first call of run n+1 ends run n; a lost
session is an error, never a fresh one; a session is exported between mutations. Steps are
admitted while the server is `preparing` (resources close last, so that a save never refuses a
step) and refused from `prepared` on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gym.checkpoint.fences import Fences
from gym.checkpoint.part_files import PartWriter
from gym.checkpoint.phases import Phases
from gym.logs import log_fault
from gym.protocol import (
    Blocker,
    CommitRequest,
    Counts,
    ExportFailed,
    Holdings,
    Identity,
    IdentityMismatch,
    Kind,
    Mode,
    Phase,
    RequestConflict,
    Role,
    SessionLost,
    UnsupportedSchema,
    WrittenFile,
)
from gym.resource.anonymous_sessions import UnidentifiedSessions, unrepeatable
from gym.resource.session import Mutation, Receipt, RefusedAs, Result, SavedSession, Session

if TYPE_CHECKING:
    from gym.resource.server import Environment

SESSIONS_FILE = "sessions.jsonl"
_LOOK_AT_STOP_S = 0.2
"""How long the export of one session goes on before a stopped writer notices."""

Handler = Callable[[Session[Any]], Awaitable[Result]]


class ResourcePart:
    """The sessions of one resource server.

    Args:
        phases: The server's state machine.
        environment: The author's code.
    """

    kind = Kind.RESOURCE
    role: Role | None = None

    def __init__(self, phases: Phases, environment: Environment[Any]) -> None:
        self._phases = phases
        self._environment = environment
        self.mode = environment.mode
        self._keeps_sessions = self.mode is not Mode.STATELESS
        """A stateless server's session of another life is as good as one of this."""
        self._sessions: dict[str, Session[Any]] = {}
        self._unidentified = UnidentifiedSessions()
        self._fences = Fences()

    # --- calls --------------------------------------------------------------------------------

    async def mutate(
        self, mutation: Mutation, handler: Handler, *, cookie: str | None
    ) -> tuple[Session[Any], Receipt]:
        """Apply one mutation exactly once.

        Args:
            mutation: Whose call it is and what it asks; `seed` begins the session.
            handler: The author's code for it.
            cookie: Session id of the call's cookie, if it has one.

        Returns:
            The session after the call, and what is to be answered.

        Raises:
            StaleAttempt: A newer run of this rollout has been seen.
            CheckpointParked: The server is closed; come back later.
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
            if cookie in self._unidentified:
                raise IdentityMismatch("the session was made without identity")
            raise SessionLost("the cookie names another session than this run's")
        return session, await self._apply(session, mutation, handler, identity)

    async def mutate_unidentified(
        self, where: str, body_sha256: str, handler: Handler, *, cookie: str | None
    ) -> tuple[Session[Any], Receipt]:
        """Apply one mutation of a caller without identity, which was held until now.

        Raises:
            IdentityMismatch: The cookie names a rollout's session.
            SessionLost: It names none.
            SessionUncertain: An earlier mutation ended in an unknown state.
        """
        incarnation = self._phases.incarnation
        assert incarnation is not None  # it was held until the server was open
        known = self._unidentified
        if where == "seed" or (cookie not in known and not self._keeps_sessions):
            session = known.begin(seeded=where != "seed")
        else:
            session = known.of(cookie, {one.id for one in self._sessions.values()})
        asked = unrepeatable(incarnation, where, body_sha256)
        receipt = await self._apply(session, asked, handler, None)
        session.forget(asked)
        return session, receipt

    async def _apply(
        self, session: Session[Any], asked: Mutation, handler: Handler, identity: Identity | None
    ) -> Receipt:
        async def seeded() -> Result:
            # Asked when it is this mutation's turn: the seed may still be running before it.
            if asked.where != "seed" and not session.seeded:
                raise RefusedAs(SessionLost("the session of this run was not seeded"))
            return await handler(session)

        return await session.apply(
            asked,
            seeded,
            in_flight=self._phases.calls.count(identity, asked.where),
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
        session = self._sessions.pop(rollout_id, None)
        if session is not None:
            # A mutation that runs goes on to its end, on a session that nobody sees any more.
            session.ended = True

    # --- the part -----------------------------------------------------------------------------

    def counts(self) -> Counts:
        """How many sessions there are."""
        return Counts(sessions=len(self._sessions))

    def blockers(self) -> list[Blocker]:
        """None of its own: mutations are calls in flight."""
        return []

    def export(self, request: CommitRequest) -> _SessionsExport:
        """The sessions there are; each one's state is taken while it is written."""
        return _SessionsExport(self._environment, list(self._sessions.values()))

    def read(self, folder: Path, files: list[WrittenFile]) -> list[tuple[SavedSession, Any]]:
        """Parse all sessions and import their states. In a thread, without effect here.

        Raises:
            UnsupportedSchema: A file, or a state in it, cannot be read; it is named.
        """
        found: list[tuple[SavedSession, Any]] = []
        for file in files:
            if self.mode is not Mode.EXPORT_RESTORE or not file.path.endswith("/" + SESSIONS_FILE):
                raise _unreadable(file, "no such file is expected")
            with (folder / file.path).open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    found.append(self._imported(file, number, line))
        if len({saved.rollout_id for saved, _ in found}) != len(found):
            raise _unreadable(files[0], "a rollout occurs twice")
        return found

    def _imported(self, file: WrittenFile, number: int, line: bytes) -> tuple[SavedSession, Any]:
        try:
            saved = SavedSession.model_validate_json(line)
        except ValidationError as error:
            fields = sorted({".".join(str(p) for p in item["loc"]) for item in error.errors()})
            raise _unreadable(file, f"line {number}: {', '.join(fields)}") from None
        try:
            state = self._environment.import_state(b64decode(saved.state, validate=True))
        except Exception as error:  # the author's code: any of its errors means the same
            raise _unreadable(
                file, f"line {number}: import_state raised {type(error).__name__}"
            ) from None
        return saved, state

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
        self._unidentified.clear()
        self._fences.clear()

    def discard(self, rollout_ids: Collection[str]) -> None:
        """Drop these rollouts' sessions; their runs n+1 stay admissible."""
        for rollout_id in rollout_ids:
            self._end(rollout_id)

    def forget(self, rollout_ids: Collection[str]) -> None:
        """Drop sessions, receipts and fences of finished rollouts."""
        self.discard(rollout_ids)
        self._fences.forget(rollout_ids)


class _SessionsExport:
    """Writes `sessions.jsonl`; made on the event loop, which stays the owner of the sessions."""

    def __init__(self, environment: Environment[Any], sessions: list[Session[Any]]) -> None:
        keeps_state = environment.mode is Mode.EXPORT_RESTORE
        listed = [s for s in sessions if s.seeded or s.uncertain] if keeps_state else []
        self._holdings = Holdings(
            counts=Counts(sessions=len(sessions)), sessions=[session.entry for session in listed]
        )
        self._keeps_state = keeps_state
        self._environment = environment
        self._exported = [session for session in listed if not session.uncertain]
        self._loop = asyncio.get_running_loop()

    def write(self, writer: PartWriter) -> Holdings:
        """Write one line for each certain session; a server without export writes nothing."""
        if self._keeps_state:
            writer.jsonl(SESSIONS_FILE, self._saved(writer))
        return self._holdings

    def _saved(self, writer: PartWriter) -> Iterator[SavedSession]:
        for session in self._exported:
            taking = asyncio.run_coroutine_threadsafe(self._take(session), self._loop)
            while not concurrent.futures.wait([taking], timeout=_LOOK_AT_STOP_S).done:
                try:
                    writer.raise_if_stopped()
                except BaseException:
                    taking.cancel()
                    raise
            yield taking.result()

    async def _take(self, session: Session[Any]) -> SavedSession:
        """One session as it is between two mutations.

        Its lock is held meanwhile: `resume` opens at once, and a step that then comes waits for
        the export of this one session at most.
        """
        async with session.lock:
            state = await asyncio.to_thread(self._state_of, session)
            return SavedSession(
                rollout_id=session.rollout_id,
                attempt_index=session.attempt,
                session_id=session.id,
                revision=session.revision,
                state=b64encode(state).decode(),
                receipts=session.receipts,
            )

    def _state_of(self, session: Session[Any]) -> bytes:
        try:
            state = self._environment.export_state(session.state)
        except Exception as error:  # the author's code: its text may hold anything
            log_fault(error, "export_state")
            raise _not_exported(session.rollout_id, f"raised {type(error).__name__}") from error
        if not isinstance(state, bytes):
            raise _not_exported(session.rollout_id, f"answered {type(state).__name__}, not bytes")
        return state


def _not_exported(rollout_id: str, why: str) -> ExportFailed:
    return ExportFailed(
        f"export_state {why} for rollout {rollout_id}; mend it and restart the job, or leave "
        "`export_state` and `import_state` out: the server is `restart_only` then",
        details={"rollout_id": rollout_id},
    )


def _unreadable(file: WrittenFile, why: str) -> UnsupportedSchema:
    return UnsupportedSchema(f"{file.path}: {why}", details={"file": file.path})
