"""A participant's side of a restore: restore, reset, discard (design sections 5 and 6).

Guarantees: all or nothing: every digest is compared and every record parsed before anything is
taken over; what fails or is reset leaves nothing. A restore has no lease.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from gym.checkpoint.folder import CheckpointFolder
from gym.checkpoint.operation import Hold
from gym.checkpoint.part import Part
from gym.checkpoint.phases import RESTORABLE, Standing
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


class Restoring:
    """The operations of a restore.

    Args:
        standing: Phase and hold.
        part: The state to be restored.
        root: Checkpoint folders are accepted only below it.
    """

    def __init__(self, standing: Standing, part: Part, root: Path) -> None:
        """Nothing restored."""
        self._standing = standing
        self._part = part
        self._root = root

    async def restore(self, request: RestoreRequest) -> RestoreAnswer:
        """Load this server's part, all or nothing; stays closed.

        Raises:
            StaleCheckpoint: The id was reset or resumed, before or meanwhile.
            CheckpointConflict: Another id holds the server.
            InvalidPhase: The server does not await a restore.
            FolderOutsideRoot: A path leads elsewhere.
            DigestMismatch: A file is missing or damaged; it is named.
            UnsupportedSchema: A file does not parse; it is named.
            RequestConflict: This id was restored with another body.
        """
        standing = self._standing
        standing.check(request)
        standing.stale.refuse(request.restore_id)
        if standing.phase is Phase.AWAITING_RESTORE:
            standing.begin(request.restore_id, Phase.RESTORING)
        hold = standing.held_by(request.restore_id, (Phase.RESTORING, Phase.RESTORED))
        body = (request.source_checkpoint_id, request.folder, tuple(request.files))
        return await hold.once("restore", body, lambda: self._loaded(hold, request))

    async def _loaded(self, hold: Hold, request: RestoreRequest) -> RestoreAnswer:
        try:
            loaded = await asyncio.to_thread(self._read, hold, request)
            hold.raise_if_ended()
            inventory = self._part.install(loaded)
        except BaseException:
            self._part.drop()
            # A hold that has ended is cleared by whoever ended it, after this has settled.
            if not hold.ended.is_set():
                self._standing.await_restore()
            raise
        self._standing.phase = Phase.RESTORED
        return RestoreAnswer(
            **self._standing.who(),
            counts=inventory.counts,
            continuations=inventory.continuations,
            sessions=inventory.sessions,
            storage=inventory.storage,
        )

    def _read(self, hold: Hold, request: RestoreRequest) -> Any:
        """Compare all digests, then parse. In a thread; no effect on the part."""
        name = self._standing.name
        folder = CheckpointFolder(self._root, request.folder)
        for file in request.files:
            hold.raise_if_ended()
            folder.verified(file, server=name)
        hold.raise_if_ended()
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
            CheckpointConflict: Another id holds the server; this one is remembered as ended.
            InvalidPhase: The server is not in a restore.
        """
        standing = self._standing
        standing.check(request)
        if standing.phase not in RESTORABLE:
            raise InvalidPhase("the server is not in a restore", details=standing.where())
        repeated = request.restore_id in standing.stale
        standing.stale.add(request.restore_id)
        hold = standing.hold
        if hold is not None and hold.id == request.restore_id:
            await self.dismantled(hold)
        elif hold is not None and not repeated:
            raise CheckpointConflict("another id holds the server", details=standing.where())
        return Answer(**standing.who())

    async def dismantled(self, hold: Hold) -> None:
        """End a restore's hold, and return when nothing of it is left."""
        if self._standing.hold is hold:
            self._standing.end_hold()
        await hold.once("reset", None, partial(self._dismantle, hold))

    async def _dismantle(self, hold: Hold) -> None:
        await hold.settled("restore")
        self._part.drop()
        self._standing.await_restore()

    def discard(self, request: DiscardRequest) -> Answer:
        """Drop what was restored of these rollouts; their runs n+1 stay admissible.

        Raises:
            StaleCheckpoint: The id was reset or resumed.
            CheckpointConflict: Another id holds the server.
            InvalidPhase: Nothing is restored.
        """
        standing = self._standing
        standing.check(request)
        standing.stale.refuse(request.restore_id)
        standing.held_by(request.restore_id, (Phase.RESTORED,))
        self._part.discard(request.rollout_ids)
        return Answer(**standing.who())
