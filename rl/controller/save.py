"""The controller's side of a save: begin, close admission, cut, resume, and the lease's end.

Guarantees (design section 4): one save at a time, and each operation has the effect of once per
checkpoint id; a repeat while it runs joins it. An id that has ended here (resumed, compensated,
or its lease ran out) can no longer do anything. Nothing stays closed once nobody renews: at the
lease's end admission opens, the barrier is released, the cut is condemned, and the tmp folder is
renamed to trash once TransferQueue's save has returned. A cut is answered only if this
controller and every server held the checkpoint when it was complete.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from gym.ended_ids import EndedIds, stale
from gym.lease import Lease
from gym.protocol import (
    CheckpointConflict,
    DeadlineExceeded,
    InvalidPhase,
    InvalidRequest,
    Phase,
    TurnpointError,
    WrittenFile,
)
from rl.controller.cut import Picture, take_picture, write_picture
from rl.controller.job_state import JobState
from rl.controller.ports import Collaborators
from rl.controller.saves import Ended, LastSnapshot, Mark, Save
from rl.data_plane.names import STAGING
from rl.errors import DataPlaneBusy
from rl.messages import SINGLE_CONTROLLER, BeginAnswer, CutAnswer, JobPhase, ServerReport
from rl.snapshots.topology import topology_of

_log = logging.getLogger(__name__)
_STATUS_LIMIT_S = 5.0
_LEAST_FREE_BYTES = 16 << 20
_TIMES_THE_NEWEST = 2
"""A snapshot is written beside the newest one and may have grown since."""


class CheckpointDesk:
    """Where saves are begun and ended."""

    def __init__(self, job: JobState, with_: Collaborators) -> None:
        """No save holds the controller."""
        self._job = job
        self._with = with_
        self._save: Save | None = None
        self._ended = EndedIds(Ended, participant=SINGLE_CONTROLLER)
        self._at_the_folder = asyncio.Lock()
        self._busy: asyncio.Task[list[WrittenFile]] | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._lease = Lease(self._lease_ended, clock=with_.lease_clock)
        self.last = LastSnapshot()
        job.on_failure(self._job_failed)

    # --- what status shows --------------------------------------------------------------------

    @property
    def checkpoint_id(self) -> str | None:
        """The id that holds the controller."""
        self._lease.check()
        return self._save.checkpoint_id if self._save else None

    @property
    def lease_left_s(self) -> float | None:
        """Seconds left of its lease."""
        self._lease.check()
        return self._lease.left_s

    # --- the operations -----------------------------------------------------------------------

    async def begin(self, checkpoint_id: str, name: str | None) -> BeginAnswer:
        """Agree to a save, or say why not; nothing stands still yet.

        Raises:
            StaleCheckpoint: The id has ended here.
            ControllerLost: The controller was not started, or the job has failed.
            NoSpace, NotWritten: The snapshot folder cannot be written.
        """
        self._lease.check()
        self._job.require_started()
        self._ended.require_not_ended(checkpoint_id)
        save = self._save
        if save is None or save.checkpoint_id != checkpoint_id:
            if (refused := self._refusal()) is not None:
                return refused
            save = self._save = Save(checkpoint_id, self._job.config.save.lease_s)
            save.begun = asyncio.create_task(self._begin(save, name))
            save.begun.add_done_callback(_retrieve)
        self._lease.extend(save.lease_s)
        return await asyncio.shield(save.begun)

    async def close_admission(self, checkpoint_id: str, budget_s: float) -> int:
        """Send no further run; return when what was owed at that moment is acknowledged.

        Returns:
            How many acknowledgements were owed when admission closed.

        Raises:
            DeadlineExceeded: Some were still owed after `budget_s`; their rollouts are named.
            StaleCheckpoint, CheckpointConflict, InvalidPhase: The id does not hold the controller.
        """
        save, _ = self._held(checkpoint_id)
        if save.closed_at is None:
            save.closed_at = self._with.clock()
            save.owed_at_close = frozenset(r.rollout_id for r in self._job.ledger.owed())
            self._job.admission.close()
        try:
            async with asyncio.timeout(budget_s):
                await self._job.ledger.wait_paid(save.owed_at_close)
        except TimeoutError:
            self._ended.require_not_ended(checkpoint_id)
            owed = save.owed_at_close & {r.rollout_id for r in self._job.ledger.owed()}
            raise DeadlineExceeded(
                f"{len(owed)} results are not acknowledged",
                details={"rollouts": sorted(owed)[:100]},
            ) from None
        self._ended.require_not_ended(checkpoint_id)
        return len(save.owed_at_close)

    async def cut(self, checkpoint_id: str, folder: str, budget_s: float) -> CutAnswer:
        """RL's own part of the snapshot, and the proof that everybody still held it.

        Raises:
            NotReady: An acknowledgement is owed.
            InventoryMismatch: Ledger, servers and TransferQueue disagree.
            DeadlineExceeded: It was not complete after `budget_s`.
            DataPlaneBusy: TransferQueue's save of an earlier try has not returned.
            NotHeld: A server no longer has this checkpoint.
            StaleCheckpoint, CheckpointConflict, InvalidPhase: The id does not hold the controller.
        """
        save, begun = self._held(checkpoint_id)
        if save.closed_at is None:
            raise InvalidPhase("close_admission comes before the cut")
        if folder != begun.folder:
            raise InvalidRequest("folder: not the one that this checkpoint has reserved")
        task = save.cut
        if task is None or (task.done() and task.exception() is not None):
            if save.storing is not None and not save.storing.done():
                raise DataPlaneBusy("TransferQueue's save of an earlier try has not returned")
            task = save.cut = asyncio.create_task(self._cut(save, folder, budget_s))
            task.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if save.ended:
                raise stale(checkpoint_id, SINGLE_CONTROLLER) from None
            raise

    def renew(self, checkpoint_id: str, lease_s: float) -> bool:
        """Extend the lease to `lease_s` from now, if this id holds the controller."""
        self._lease.check()
        if self._save is None or self._save.checkpoint_id != checkpoint_id:
            return False
        self._lease.extend(lease_s)
        return True

    def resume(self, checkpoint_id: str, published: str | None) -> float | None:
        """Open admission; always answered, also the compensation's last step.

        Args:
            checkpoint_id: The save; whatever it is, it can do nothing here any more.
            published: Name of its snapshot, if there is one.

        Returns:
            Seconds from admission closing to opening; None if it never closed for this id.
        """
        self._lease.check()
        save = self._save
        if save is not None and save.checkpoint_id == checkpoint_id:
            self._end(save, keep_folder=published is not None)
        ended = self._ended.add(checkpoint_id)
        if published is not None:
            self.last = self.last.or_newer(published, ended.mark)
        return ended.pause_s

    # --- begin --------------------------------------------------------------------------------

    def _refusal(self) -> BeginAnswer | None:
        if self._job.phase in (JobPhase.STARTING, JobPhase.RESTORED):
            return self._refused("restore_not_finished", "the pumps are not started yet")
        if self._job.phase is JobPhase.FINISHED:
            return self._refused("job_finished", "every rollout is over")
        if self._save is not None:
            return self._refused(
                "checkpoint_running",
                "another save (scheduled or manual) is running; wait for it and try again",
                {"checkpoint_id": self._save.checkpoint_id},
            )
        if self._busy is not None:
            return self._refused("data_plane_busy", "TransferQueue's last save has not returned")
        return None

    async def _begin(self, save: Save, name: str | None) -> BeginAnswer:
        tmp = snapshot = ""
        try:
            refused = await self._look(name)
            # A slow one that has ended meanwhile must not sweep what the next save writes in.
            async with self._at_the_folder:
                if refused is None and not save.ended:
                    refused = await self._no_room()
                if refused is None and not save.ended:
                    tmp, snapshot = await asyncio.to_thread(
                        self._with.folder.reserve, save.checkpoint_id, self._job.incarnation
                    )
        except BaseException:
            self._let_go(save)
            raise
        if save.ended:  # resumed or its lease ended meanwhile: `_clear_away` found no folder yet
            await asyncio.to_thread(self._with.folder.discard, save.checkpoint_id)
            raise stale(save.checkpoint_id, SINGLE_CONTROLLER)
        if refused is not None:
            self._let_go(save)
            return refused
        return BeginAnswer(
            agreed=True,
            incarnation=self._job.incarnation,
            folder=tmp,
            snapshot=snapshot,
            settings=self._job.config.save,
        )

    async def _look(self, name: str | None) -> BeginAnswer | None:
        """What would make the save fail later, but for the disk, before anything stands still."""
        if name is None and self.last.mark is not None:
            try:
                async with asyncio.timeout(self._job.config.data_plane_timeout_s):
                    mark = await self._mark()
            except TimeoutError:
                return self._refused("data_plane_busy", "TransferQueue does not answer")
            if mark == self.last.mark:
                return self._refused("unchanged", f"nothing has changed since {self.last.name}")
        try:
            async with asyncio.timeout(_STATUS_LIMIT_S):
                servers = await self._with.gym.status()
        except (TurnpointError, TimeoutError) as error:
            why = error.code if isinstance(error, TurnpointError) else "no answer"
            who = getattr(error, "participant", None) or "a server"
            return self._refused("server_unfit", f"{who}: {why}")
        silent = {s.name for s in self._job.servers if s.instance_id} - {s.server for s in servers}
        if silent:
            return self._refused(
                "server_unfit",
                f"no answer from {', '.join(sorted(silent))} as the process that joined: look at "
                "`turnpoint status` and `turnpoint logs NAME`; one that has restarted has lost its "
                "state, and `turnpoint restore --replace` brings the job back",
            )
        closed = sorted(s.server for s in servers if s.phase is not Phase.OPEN)
        if closed:
            return self._refused("server_unfit", f"not open: {', '.join(closed)}")
        return None

    async def _no_room(self) -> BeginAnswer | None:
        """The refusal, if too little space is free for another snapshot."""
        newest = await asyncio.to_thread(self._with.folder.newest_bytes)
        need = max(_LEAST_FREE_BYTES, _TIMES_THE_NEWEST * newest)
        free = await asyncio.to_thread(self._with.folder.free_bytes)
        if free < need:
            # A save that found the disk full has left its files there, perhaps.
            await asyncio.to_thread(self._with.folder.make_room, self._job.incarnation)
            free = await asyncio.to_thread(self._with.folder.free_bytes)
        if free < need:
            return self._refused(
                "no_space",
                f"{free} bytes are free below the snapshot root, {need} are needed: free some, or "
                "lower keep_latest_k",
            )
        return None

    def _refused(
        self, refusal: str, reason: str, details: dict[str, Any] | None = None
    ) -> BeginAnswer:
        return BeginAnswer(
            agreed=False,
            refusal=refusal,
            reason=reason,
            details=details or {},
            incarnation=self._job.incarnation,
            settings=self._job.config.save,
        )

    def _let_go(self, save: Save) -> None:
        if self._save is save:
            self._save = None
            self._lease.release()

    # --- cut ----------------------------------------------------------------------------------

    async def _cut(self, save: Save, folder: str, budget_s: float) -> CutAnswer:
        path = self._job.config.job_folder / folder
        try:
            async with asyncio.timeout(budget_s):
                inventory = await self._with.gym.inventory(save.checkpoint_id)
                await self._job.ledger.wait_paid()
                async with self._job.barrier.cut():
                    save.mark = await self._job.data_plane(self._mark())
                    rows_put = self._job.rows_put
                    picture = await take_picture(self._job, self._with.data_plane, inventory)
                    save.storing = asyncio.create_task(self._with.host.save(str(path)))
                    save.storing.add_done_callback(_look_at_error)
                    self._job.saving = save.storing
                    own = await write_picture(picture, path)
                    stored = await asyncio.shield(save.storing)
                servers = await self._with.gym.confirm_held(save.checkpoint_id)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the cut was not complete after {budget_s:g} s", participant="SingleController"
            ) from None
        self._lease.check()  # an ended lease condemns the cut, whatever its timer did
        if save.ended:
            raise stale(save.checkpoint_id, SINGLE_CONTROLLER)
        return _answer(self._job, picture, rows_put, [*stored, *own], servers)

    async def _mark(self) -> Mark:
        staged = await self._with.data_plane.keys(STAGING)
        return self._job.barrier.version, len(staged)

    # --- ending -------------------------------------------------------------------------------

    def _held(self, checkpoint_id: str) -> tuple[Save, BeginAnswer]:
        """The save of this id, its lease extended."""
        self._lease.check()
        self._job.require_started()
        self._ended.require_not_ended(checkpoint_id)
        save = self._save
        if save is not None and save.checkpoint_id != checkpoint_id:
            raise CheckpointConflict(f"{save.checkpoint_id} holds the job")
        if save is None or not save.begun.done():
            raise InvalidPhase("begin_checkpoint comes first")
        self._lease.extend(save.lease_s)
        return save, save.begun.result()

    def _lease_ended(self) -> None:
        if self._save is not None:
            ids = {"checkpoint_id": self._save.checkpoint_id}
            _log.warning("lease ended", extra={"event": "lease_ended", **ids})
            self._end(self._save, keep_folder=False)

    def _job_failed(self) -> None:
        if self._save is not None:
            self._end(self._save, keep_folder=False)

    def _end(self, save: Save, *, keep_folder: bool) -> None:
        """Open again, and let nothing of this save count any more. Takes effect at once."""
        save.ended = True
        self._save = None
        self._lease.release()
        ended = self._ended.add(save.checkpoint_id)
        ended.mark = save.mark
        if save.closed_at is not None:
            ended.pause_s = self._with.clock() - save.closed_at
        if save.cut is not None:
            save.cut.cancel()  # leaves the barrier; TransferQueue's save goes on by itself
        self._job.admission.open()
        if save.storing is not None and not save.storing.done():
            self._busy = save.storing
        if not keep_folder:
            self._clearing = asyncio.create_task(self._clear_away(save))
            self._clearing.add_done_callback(_look_at_error)

    async def _clear_away(self, save: Save) -> None:
        if save.storing is not None:
            await asyncio.wait([save.storing])
        try:
            await asyncio.to_thread(self._with.folder.discard, save.checkpoint_id)
        finally:
            if self._busy is save.storing:
                self._busy = None


def _answer(
    job: JobState,
    picture: Picture,
    rows_put: int,
    files: list[WrittenFile],
    servers: list[ServerReport],
) -> CutAnswer:
    unfinished = sum(record.unfinished for record in picture.records.values())
    return CutAnswer(
        files=files,
        unfinished=unfinished,
        finished=len(picture.records) - unfinished,
        rows_put=rows_put,
        topology=topology_of(job.config, job.servers, job.loader.semantic),
        servers=servers,
    )


def _retrieve(task: asyncio.Task[object]) -> None:
    """Those who wait raise it; asyncio must not complain when nobody is left to."""
    if not task.cancelled():
        task.exception()


def _look_at_error(task: asyncio.Task[object]) -> None:
    """Log what a task that nobody may be waiting for any more has raised."""
    if not task.cancelled() and (error := task.exception()) is not None:
        code = error.code if isinstance(error, TurnpointError) else type(error).__name__
        _log.warning(code, extra={"event": "background_error"})
