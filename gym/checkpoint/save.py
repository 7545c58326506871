"""A participant's side of a save: prepare, renew, commit, resume (design sections 4 and 6).

Guarantees: a call has its effect once per id; an ended lease or a resume ends all calls of the id;
opening never waits for the writer, the next `prepare` does. Files are written in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.operation import Operation
from gym.checkpoint.part import Export, Part
from gym.checkpoint.part_files import PartWriter, WriterStopped
from gym.checkpoint.phases import SAVING, Phases
from gym.durable import refusal_of_the_disk
from gym.protocol import (
    Blocker,
    CommitAnswer,
    CommitRequest,
    Counts,
    DeadlineExceeded,
    Holdings,
    InvalidPhase,
    NotReady,
    Phase,
    PrepareAnswer,
    PrepareRequest,
    RenewAnswer,
    RenewRequest,
    ResumeAnswer,
    ResumeRequest,
)
from gym.protocol.control import MAX_BLOCKERS

log = logging.getLogger("turnpoint.gym")


@dataclass(frozen=True)
class _Writing:
    """A commit's thread; it may outlive its checkpoint for a moment."""

    task: asyncio.Task[Holdings]
    since: float


class Save:
    """The control calls of a save.

    Args:
        phases: Phase, owner and lease.
        part: The state to be written.
        root: Checkpoint folders are accepted only below it.
    """

    def __init__(self, phases: Phases, part: Part, root: Path) -> None:
        self._phases = phases
        self._part = part
        self._root = root
        self._writing: _Writing | None = None

    def counts(self) -> Counts:
        """Counts of the server's state."""
        return self._part.counts().model_copy(update={"in_flight": len(self._phases.calls)})

    def blockers(self) -> list[Blocker]:
        """Reasons why the server is not ready, oldest first."""
        if self._phases.never_closes:
            return []
        found = [*self._part.blockers(), *self._phases.calls.blockers(), *self._writer()]
        return sorted(found, key=lambda blocker: -blocker.age_s)

    # --- prepare and renew --------------------------------------------------------------------

    async def prepare(self, request: PrepareRequest) -> PrepareAnswer:
        """Close admission and wait, `budget_s` at most, until every rollout stands at a boundary.

        Raises:
            StaleCheckpoint: The id has ended, before or meanwhile.
            CheckpointConflict: Another id owns the server.
            InvalidPhase: The server is not open and not in a save.
        """
        phases = self._phases
        phases.require_addressed(request)
        phases.ended_ids.require_not_ended(request.checkpoint_id)
        if phases.phase is Phase.OPEN:
            phases.begin(request.checkpoint_id, Phase.PREPARING)
        operation = phases.require_operation(request.checkpoint_id, SAVING)
        phases.lease.extend(request.lease_s)
        return await operation.once(
            "prepare",
            None,
            lambda: self._ready(operation, request.budget_s),
            record=lambda answer: answer.ready,
        )

    async def _ready(self, operation: Operation, budget_s: float) -> PrepareAnswer:
        deadline = time.monotonic() + budget_s
        while True:
            # A lease that ended while the process was stopped must not become `prepared`.
            self._phases.lease.check()
            operation.require_not_ended()
            blockers = self.blockers()
            left_s = deadline - time.monotonic()
            if not blockers:
                self._phases.phase = Phase.PREPARED
            if not blockers or left_s <= 0:
                return PrepareAnswer(
                    **self._phases.who(),
                    ready=not blockers,
                    counts=self.counts(),
                    blockers=blockers[:MAX_BLOCKERS],
                    blocker_count=len(blockers),
                )
            await self._phases.change(left_s)

    def renew(self, request: RenewRequest) -> RenewAnswer:
        """Extend the lease, if this id owns the server for a save; never revives one."""
        phases = self._phases
        phases.require_addressed(request)
        held = phases.owner == request.checkpoint_id and phases.phase in SAVING
        if held:
            phases.lease.extend(request.lease_s)
        return RenewAnswer(**phases.who(), held=held, lease_left_s=phases.lease.left_s)

    # --- commit -------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Write this server's part, within `budget_s`.

        Raises:
            StaleCheckpoint: The id has ended, before or meanwhile.
            CheckpointConflict: Another id owns the server.
            InvalidPhase: `prepare` has not answered ready.
            FolderOutsideRoot: The folder is not an existing one below the snapshot root.
            NotReady: The writer of an earlier try is still there.
            DeadlineExceeded: The budget is used up; the writer was told to stop.
            NoSpace, NotWritten: The disk refuses; nothing is left under a final name.
            RequestConflict: This id was committed with another body.
        """
        phases = self._phases
        phases.require_addressed(request)
        phases.ended_ids.require_not_ended(request.checkpoint_id)
        operation = phases.require_operation(
            request.checkpoint_id, (Phase.PREPARED, Phase.COMMITTED)
        )
        body = (request.folder, tuple(request.continuation_indexes))
        return await operation.once("commit", body, lambda: self._written(operation, request))

    async def _written(self, operation: Operation, request: CommitRequest) -> CommitAnswer:
        deadline = time.monotonic() + request.budget_s
        folder = await asyncio.to_thread(CheckpointFolder, self._root, request.folder)
        await self._writer_gone(operation, deadline)
        export = self._part.export(request)
        writer, holdings = await self._write(operation, folder, export, deadline)
        self._phases.lease.check()
        operation.require_not_ended()
        self._phases.phase = Phase.COMMITTED
        return CommitAnswer(**self._phases.who(), files=writer.files, **dict(holdings))

    async def _writer_gone(self, operation: Operation, deadline: float) -> None:
        """Return when the writer of an earlier try has stopped."""
        operation.require_not_ended()
        while self._writing is not None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise NotReady(
                    "the writer of an earlier try has not stopped yet",
                    details={"blockers": [blocker.model_dump() for blocker in self._writer()]},
                )
            await self._phases.change(left_s)
            operation.require_not_ended()

    async def _write(
        self, operation: Operation, folder: CheckpointFolder, export: Export, deadline: float
    ) -> tuple[PartWriter, Holdings]:
        """Write in a thread until that ends, the operation ends, or the deadline comes."""
        stop = threading.Event()
        writer = PartWriter(folder, self._phases.name, stop)
        task = asyncio.ensure_future(asyncio.to_thread(export.write, writer))
        self._writing = _Writing(task, time.monotonic())
        task.add_done_callback(self._writer_ended)
        ended = asyncio.ensure_future(operation.ended.wait())
        left_s = max(deadline - time.monotonic(), 0)
        try:
            await asyncio.wait({task, ended}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            stop.set()
        operation.require_not_ended()
        if not task.done():
            raise DeadlineExceeded("the budget of commit is used up; the writer was told to stop")
        try:
            return writer, task.result()
        except OSError as error:
            raise refusal_of_the_disk(error, participant=self._phases.name) from error

    def _writer_ended(self, task: asyncio.Task[Holdings]) -> None:
        self._writing = None
        self._phases.changed()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, WriterStopped):
            log.error("writer", extra={"event": "writer_failed", "error": type(error).__name__})

    def _writer(self) -> list[Blocker]:
        """A writer that has not stopped yet, as a blocker."""
        if self._writing is None:
            return []
        age_s = time.monotonic() - self._writing.since
        return [Blocker(rollout_id=None, where="writer", age_s=age_s)]

    # --- resume -------------------------------------------------------------------------------

    def resume(self, request: ResumeRequest) -> ResumeAnswer:
        """Open at once; also the abort, and the end of a restore.

        A writer is told to stop, not waited for. An id that does not own the server is
        remembered as ended, and changes nothing else.

        Raises:
            InvalidPhase: This id is restoring, or being reset.
        """
        phases = self._phases
        phases.require_addressed(request, joined=False)
        operation = phases.operation
        if operation is None or operation.id != request.checkpoint_id:
            phases.ended_ids.add(request.checkpoint_id)
        elif phases.phase is Phase.RESTORING:
            raise InvalidPhase("this id is restoring; reset it instead", details=phases.where())
        elif operation.ended.is_set():  # what was restored is being dropped
            raise InvalidPhase("this id is being reset", details=phases.where())
        else:
            phases.open()
        return ResumeAnswer(**phases.who(), checkpoint_id=phases.owner)
