"""`sessions.jsonl`: the sessions of a resource server, written and read back.

Guarantees: a session is exported between two mutations; a session that is read has the state
which the author's `import_state` made of it, or an error names file and line.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gym.checkpoint.part_files import PartWriter
from gym.logs import log_fault
from gym.protocol import Counts, ExportFailed, Holdings, Mode, UnsupportedSchema, WrittenFile
from gym.resource.environment import BaseEnvironment
from gym.resource.session import SavedSession, Session

SESSIONS_FILE = "sessions.jsonl"
_STOP_CHECK_S = 0.2
"""Seconds for which the export of one session goes on before a stopped writer notices."""


class SessionsExport:
    """Writes `sessions.jsonl`; made on the event loop, which stays the owner of the sessions."""

    def __init__(self, environment: BaseEnvironment[Any], sessions: list[Session[Any]]) -> None:
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
            while not concurrent.futures.wait([taking], timeout=_STOP_CHECK_S).done:
                try:
                    writer.raise_if_stopped()
                except BaseException:
                    taking.cancel()
                    raise
            yield taking.result()

    async def _take(self, session: Session[Any]) -> SavedSession:
        """One session as it is between two mutations.

        Its lock is locked meanwhile: `resume` opens at once, and a step that then comes waits for
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


def read_sessions(
    environment: BaseEnvironment[Any], folder: Path, files: list[WrittenFile]
) -> list[tuple[SavedSession, Any]]:
    """Parse all sessions and import their states. Runs in a thread, without effect on the server.

    Raises:
        UnsupportedSchema: A file, or a state in it, cannot be read; it is named.
    """
    found: list[tuple[SavedSession, Any]] = []
    for file in files:
        expected = file.path.endswith("/" + SESSIONS_FILE)
        if environment.mode is not Mode.EXPORT_RESTORE or not expected:
            raise _unreadable(file, "no such file is expected")
        with (folder / file.path).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                found.append(_imported(environment, file, number, line))
    if len({saved.rollout_id for saved, _ in found}) != len(found):
        raise _unreadable(files[0], "a rollout occurs twice")
    return found


def _imported(
    environment: BaseEnvironment[Any], file: WrittenFile, number: int, line: bytes
) -> tuple[SavedSession, Any]:
    try:
        saved = SavedSession.model_validate_json(line)
    except ValidationError as error:
        fields = sorted({".".join(str(p) for p in item["loc"]) for item in error.errors()})
        raise _unreadable(file, f"line {number}: {', '.join(fields)}") from None
    try:
        state = environment.import_state(b64decode(saved.state, validate=True))
    except Exception as error:  # the author's code: any of its errors means the same
        reason = f"line {number}: import_state raised {type(error).__name__}"
        raise _unreadable(file, reason) from None
    return saved, state


def _not_exported(rollout_id: str, reason: str) -> ExportFailed:
    return ExportFailed(
        f"export_state {reason} for rollout {rollout_id}; mend it and restart the job, or leave "
        "`export_state` and `import_state` out: the server is `restart_only` then",
        details={"rollout_id": rollout_id},
    )


def _unreadable(file: WrittenFile, reason: str) -> UnsupportedSchema:
    return UnsupportedSchema(f"{file.path}: {reason}", details={"file": file.path})
