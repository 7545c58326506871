"""A participant's side of a save: prepare, renew, commit, resume (design sections 4 and 6).

Guarantees: an operation has its effect once per id; an ended lease or a resume ends whatever
runs under the id; opening never waits for the writer, the next `prepare` does. Files are
written in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.operation import Hold
from gym.checkpoint.part import Export, Part, PartWriter, WriterStopped
from gym.checkpoint.phases import SAVING, Standing
from gym.durable import refusal_of_the_disk
from gym.protocol import (
    Blocker,
    CommitAnswer,
    CommitRequest,
    Counts,
    DeadlineExceeded,
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

    task: asyncio.Task[None]
    since: float


class Saving:
    """The operations of a save.

    Args:
        standing: Phase, hold and lease.
        part: The state to be written.
        root: Checkpoint folders are accepted only below it.
        blockers: What keeps the server from being ready, the writer included.
        counts: What the server holds.
    """

    def __init__(
        self,
        standing: Standing,
        part: Part,
        root: Path,
        *,
        blockers: Callable[[], list[Blocker]],
        counts: Callable[[], Counts],
    ) -> None:
        """No writer yet."""
        self._standing = standing
        self._part = part
        self._root = root
        self._blockers = blockers
        self._counts = counts
        self._writing: _Writing | None = None

    async def prepare(self, request: PrepareRequest) -> PrepareAnswer:
        """Close admission and wait, `budget_s` at most, until every rollout stands at a boundary.

        Raises:
            StaleCheckpoint: The id has ended, before or meanwhile.
            CheckpointConflict: Another id holds the server.
            InvalidPhase: The server is not open and not in a save.
        """
        standing = self._standing
        standing.check(request)
        standing.stale.refuse(request.checkpoint_id)
        if standing.phase is Phase.OPEN:
            standing.begin(request.checkpoint_id, Phase.PREPARING)
        hold = standing.held_by(request.checkpoint_id, SAVING)
        standing.lease.hold(request.lease_s)
        return await hold.once(
            "prepare", None, lambda: self._ready(hold, request.budget_s), record=lambda a: a.ready
        )

    async def _ready(self, hold: Hold, budget_s: float) -> PrepareAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        while True:
            # A lease that ended while the process stood still must not become `prepared`.
            self._standing.lease.check()
            hold.raise_if_ended()
            blockers = self._blockers()
            left = deadline - loop.time()
            if not blockers:
                self._standing.phase = Phase.PREPARED
            if not blockers or left <= 0:
                return PrepareAnswer(
                    **self._standing.who(),
                    ready=not blockers,
                    counts=self._counts(),
                    blockers=blockers[:MAX_BLOCKERS],
                    blocker_count=len(blockers),
                )
            await self._standing.change(left)

    def renew(self, request: RenewRequest) -> RenewAnswer:
        """Extend the lease, if this id holds the server for a save; never revives one."""
        standing = self._standing
        standing.check(request)
        held = standing.holder == request.checkpoint_id and standing.phase in SAVING
        if held:
            standing.lease.hold(request.lease_s)
        return RenewAnswer(**standing.who(), held=held, lease_left_s=standing.lease.left_s)

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Write this server's part, within `budget_s`.

        Raises:
            StaleCheckpoint: The id has ended, before or meanwhile.
            CheckpointConflict: Another id holds the server.
            InvalidPhase: `prepare` has not answered ready.
            FolderOutsideRoot: The folder is not an existing one below the snapshot root.
            NotReady: The writer of an earlier try is still there.
            DeadlineExceeded: The budget is used up; the writer was told to stop.
            NoSpace, NotWritten: The disk refuses; nothing is left under a final name.
            RequestConflict: This id was committed with another body.
        """
        standing = self._standing
        standing.check(request)
        standing.stale.refuse(request.checkpoint_id)
        hold = standing.held_by(request.checkpoint_id, (Phase.PREPARED, Phase.COMMITTED))
        body = (request.folder, tuple(request.continuation_indexes))
        return await hold.once("commit", body, lambda: self._written(hold, request))

    async def _written(self, hold: Hold, request: CommitRequest) -> CommitAnswer:
        deadline = asyncio.get_running_loop().time() + request.budget_s
        folder = await asyncio.to_thread(CheckpointFolder, self._root, request.folder)
        await self._writer_gone(hold, deadline)
        export = self._part.export(request)
        writer = await self._write(hold, folder, export, deadline)
        self._standing.lease.check()
        hold.raise_if_ended()
        self._standing.phase = Phase.COMMITTED
        return CommitAnswer(
            **self._standing.who(),
            files=writer.files,
            counts=export.counts,
            continuations=export.continuations,
            sessions=export.sessions,
            storage=export.storage,
        )

    async def _writer_gone(self, hold: Hold, deadline: float) -> None:
        """Return when the writer of an earlier try has stopped."""
        loop = asyncio.get_running_loop()
        hold.raise_if_ended()
        while self._writing is not None:
            if (left := deadline - loop.time()) <= 0:
                raise NotReady(
                    "the writer of an earlier try has not stopped yet",
                    details={"blockers": [blocker.model_dump() for blocker in self.writer()]},
                )
            await self._standing.change(left)
            hold.raise_if_ended()

    async def _write(
        self, hold: Hold, folder: CheckpointFolder, export: Export, deadline: float
    ) -> PartWriter:
        """Write in a thread until that ends, the hold ends, or the deadline comes."""
        stop = threading.Event()
        writer = PartWriter(folder, self._standing.name, stop)
        task = asyncio.ensure_future(asyncio.to_thread(export.write, writer))
        self._writing = _Writing(task, time.monotonic())
        task.add_done_callback(self._writer_ended)
        ended = asyncio.ensure_future(hold.ended.wait())
        left = max(deadline - asyncio.get_running_loop().time(), 0)
        try:
            await asyncio.wait({task, ended}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            stop.set()
        hold.raise_if_ended()
        if not task.done():
            raise DeadlineExceeded("the budget of commit is used up; the writer was told to stop")
        try:
            task.result()
        except OSError as error:
            raise refusal_of_the_disk(error, participant=self._standing.name) from error
        return writer

    def _writer_ended(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        self._standing.changed()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, WriterStopped):
            log.error("writer", extra={"event": "writer_failed", "error": type(error).__name__})

    def resume(self, request: ResumeRequest) -> ResumeAnswer:
        """Open at once; also the abort, and the end of a restore.

        A writer is told to stop, not waited for. An id that does not hold the server is
        remembered, and changes nothing else.

        Raises:
            InvalidPhase: This id is restoring, or being reset.
        """
        standing = self._standing
        standing.check(request, joined=False)
        if (hold := standing.hold) is None or hold.id != request.checkpoint_id:
            standing.stale.add(request.checkpoint_id)
        elif standing.phase is Phase.RESTORING:
            raise InvalidPhase("this id is restoring; reset it instead", details=standing.where())
        elif hold.ended.is_set():  # what was restored is being dropped
            raise InvalidPhase("this id is being reset", details=standing.where())
        else:
            standing.open()
        return ResumeAnswer(**standing.who(), checkpoint_id=standing.holder)

    def writer(self) -> list[Blocker]:
        """A writer that has not stopped yet, as a blocker."""
        if self._writing is None:
            return []
        age_s = time.monotonic() - self._writing.since
        return [Blocker(rollout_id=None, where="writer", age_s=age_s)]
