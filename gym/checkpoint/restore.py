"""A participant's side of a restore: load, reset, discard (design sections 5 and 6).

Guarantees: all or nothing: every digest is compared and every record parsed before the part takes
anything over; a restore that fails or is reset leaves nothing. A restore has no lease.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.operation import Operation
from gym.checkpoint.part import Part
from gym.checkpoint.phases import RESTORABLE, Phases
from gym.protocol import (
    Answer,
    CheckpointConflict,
    DiscardRequest,
    InvalidPhase,
    Phase,
    ResetRequest,
    RestoreAnswer,
    RestoreRequest,
    UnsupportedSchema,
)


class Restore:
    """The control calls of a restore.

    Args:
        phases: Phase and owner.
        part: The state to be restored.
        root: Checkpoint folders are accepted only below it.
    """

    def __init__(self, phases: Phases, part: Part, root: Path) -> None:
        self._phases = phases
        self._part = part
        self._root = root

    async def load(self, request: RestoreRequest) -> RestoreAnswer:
        """Load this server's part (`POST restore`), all or nothing; stays closed.

        Raises:
            StaleCheckpoint: The id was reset or resumed, before or meanwhile.
            CheckpointConflict: Another id owns the server.
            InvalidPhase: The server does not await a restore.
            FolderOutsideRoot: A path leads elsewhere.
            DigestMismatch: A file is missing or damaged; it is named.
            UnsupportedSchema: A file does not parse; it is named.
            RequestConflict: This id was restored with another body.
        """
        phases = self._phases
        phases.require_addressed(request)
        phases.ended_ids.require_not_ended(request.restore_id)
        if phases.phase is Phase.AWAITING_RESTORE:
            phases.begin(request.restore_id, Phase.RESTORING)
        operation = phases.require_operation(request.restore_id, (Phase.RESTORING, Phase.RESTORED))
        body = (request.source_checkpoint_id, request.folder, tuple(request.files))
        return await operation.once("restore", body, lambda: self._loaded(operation, request))

    async def _loaded(self, operation: Operation, request: RestoreRequest) -> RestoreAnswer:
        try:
            loaded = await asyncio.to_thread(self._read, operation, request)
            operation.require_not_ended()
            holdings = self._part.install(loaded)
        except BaseException:
            self._part.drop()
            # An operation that has ended is cleared by the call that ended it, after this one.
            if not operation.ended.is_set():
                self._phases.await_restore()
            raise
        self._phases.phase = Phase.RESTORED
        return RestoreAnswer(**self._phases.who(), **dict(holdings))

    def _read(self, operation: Operation, request: RestoreRequest) -> Any:
        """Compare all digests, then parse. In a thread; no effect on the part."""
        name = self._phases.name
        folder = CheckpointFolder(self._root, request.folder)
        for file in request.files:
            operation.require_not_ended()
            folder.verified(file, server=name)
        operation.require_not_ended()
        try:
            return self._part.read(folder.path, list(request.files))
        except ValueError as error:  # pydantic's, json's and pyarrow's errors are ValueErrors
            raise UnsupportedSchema(
                f"the files of {name} do not parse ({type(error).__name__})",
                details={"files": [file.path for file in request.files]},
            ) from None

    async def reset(self, request: ResetRequest) -> Answer:
        """Drop everything restored, back to awaiting; stops a running restore and waits for it.

        Raises:
            CheckpointConflict: Another id owns the server; this one is remembered as ended.
            InvalidPhase: The server is not in a restore.
        """
        phases = self._phases
        phases.require_addressed(request)
        if phases.phase not in RESTORABLE:
            raise InvalidPhase("the server is not in a restore", details=phases.where())
        repeated = request.restore_id in phases.ended_ids
        phases.ended_ids.add(request.restore_id)
        operation = phases.operation
        if operation is not None and operation.id == request.restore_id:
            await self.dismantle(operation)
        elif operation is not None and not repeated:
            raise CheckpointConflict("another id owns the server", details=phases.where())
        return Answer(**phases.who())

    async def dismantle(self, operation: Operation) -> None:
        """End a restore, and return when nothing of it is left."""
        if self._phases.operation is operation:
            self._phases.end_operation()
        await operation.once("reset", None, partial(self._dismantled, operation))

    async def _dismantled(self, operation: Operation) -> None:
        await operation.calls.settled("restore")
        self._part.drop()
        self._phases.await_restore()

    def discard(self, request: DiscardRequest) -> Answer:
        """Drop what was restored of these rollouts; their runs n+1 stay admissible.

        Raises:
            StaleCheckpoint: The id was reset or resumed.
            CheckpointConflict: Another id owns the server.
            InvalidPhase: Nothing is restored.
        """
        phases = self._phases
        phases.require_addressed(request)
        phases.ended_ids.require_not_ended(request.restore_id)
        phases.require_operation(request.restore_id, (Phase.RESTORED,))
        self._part.discard(request.rollout_ids)
        return Answer(**phases.who())
