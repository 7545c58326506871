"""The controller's side of a save: begin, close admission, cut, resume, and the lease's end.

Guarantees (design section 4): one save at a time, and each operation has the effect of once per
checkpoint id; a repeat while it runs joins it. An id that has ended here (resumed, compensated,
or its lease ran out) can no longer do anything. Nothing stays closed once the lease is not renewed:
at its end admission opens, the barrier is released, the cut is condemned, and the tmp folder is
renamed to trash once TransferQueue's save has returned. A cut is answered only if this
controller and every server held the checkpoint when it was complete.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from gym.ended_ids import EndedIds, stale
from gym.lease import Lease
from gym.protocol import (
    CheckpointConflict,
    DeadlineExceeded,
    InvalidPhase,
    InvalidRequest,
    TurnpointError,
)
from gym.single_flight import SingleFlight
from rl.controller.collaborators import Collaborators
from rl.controller.cut import take_cut
from rl.controller.job_state import JobState, Mark
from rl.controller.preconditions import (
    SaveRefused,
    require_changed,
    require_open_servers,
    require_ready,
    require_space,
)
from rl.errors import DataPlaneBusy
from rl.messages import SINGLE_CONTROLLER, BeginAnswer, CutAnswer

_log = logging.getLogger(__name__)


@dataclass
class Save:
    """The save that runs."""

    checkpoint_id: str
    closed_at: float | None = None
    """Time at which admission closed, on the clock that measures the pause."""
    owed_at_close: frozenset[str] = frozenset()
    """Rollouts whose acknowledgement was owed at that time."""
    mark: Mark | None = None
    """Of its cut, once that is complete."""
    ended: bool = False


@dataclass
class EndedSave:
    """Memory of a save that can no longer do anything."""

    pause_s: float | None = None
    mark: Mark | None = None


class SaveCoordinator:
    """Runs one save after the other."""

    def __init__(self, job: JobState, collaborators: Collaborators) -> None:
        self._job = job
        self._others = collaborators
        self._save: Save | None = None
        self._begins = SingleFlight[str]("this checkpoint id", participant=SINGLE_CONTROLLER)
        self._cuts = SingleFlight[str]("this checkpoint id", participant=SINGLE_CONTROLLER)
        self._ended = EndedIds(EndedSave, participant=SINGLE_CONTROLLER)
        self._at_the_folder = asyncio.Lock()
        self._clearing: set[asyncio.Task[None]] = set()
        self._lease = Lease(self._on_lease_end, clock=collaborators.lease_clock)
        job.on_failure(self._on_job_failure)

    @property
    def checkpoint_id(self) -> str | None:
        """Id of the save that runs."""
        self._lease.check()
        return self._save.checkpoint_id if self._save else None

    @property
    def lease_left_s(self) -> float | None:
        """Seconds left of its lease."""
        self._lease.check()
        return self._lease.left_s

    # --- the operations -----------------------------------------------------------------------

    async def begin(self, checkpoint_id: str, name: str | None) -> BeginAnswer:
        """Agree to a save or refuse it; nothing pauses yet.

        Args:
            checkpoint_id: The save.
            name: Name of a manual save, which is never skipped as unchanged.

        Raises:
            StaleCheckpoint: The id has ended here.
            ControllerLost: The controller was not started, or the job has failed.
            NoSpace, NotWritten: The snapshot folder cannot be written.
        """
        self._require_usable(checkpoint_id)
        save = self._save
        try:
            if save is None or save.checkpoint_id != checkpoint_id:
                require_ready(self._job, save.checkpoint_id if save else None)
                save = self._save = Save(checkpoint_id)
            self._lease.extend(self._job.config.save.lease_s)
            return await self._begins.run(
                checkpoint_id, None, lambda: self._begin(save, name), record=lambda _: True
            )
        except SaveRefused as refused:
            return refused.answer(self._job)

    async def close_admission(self, checkpoint_id: str, timeout_s: float) -> int:
        """Send no further run; return when what was owed at that moment is acknowledged.

        Returns:
            Number of acknowledgements that were owed when admission closed.

        Raises:
            DeadlineExceeded: Some were still owed after `timeout_s`; their rollouts are named.
            StaleCheckpoint, CheckpointConflict, InvalidPhase: This save does not run here.
        """
        save, _ = self._require_running(checkpoint_id)
        if save.closed_at is None:
            save.closed_at = self._others.clock()
            save.owed_at_close = frozenset(r.rollout_id for r in self._job.ledger.owed())
            self._job.admission.close()
        try:
            async with asyncio.timeout(timeout_s):
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

    async def cut(self, checkpoint_id: str, folder: str, timeout_s: float) -> CutAnswer:
        """Save RL's own part of the snapshot, and prove that every server still held it then.

        Raises:
            NotReady: An acknowledgement is owed.
            InventoryMismatch: Ledger, servers and TransferQueue disagree.
            DeadlineExceeded: It was not complete after `timeout_s`.
            DataPlaneBusy: TransferQueue's save of an earlier try has not returned.
            NotHeld: A server no longer has this checkpoint.
            NoSpace, NotWritten: The disk refuses.
            StaleCheckpoint, CheckpointConflict, InvalidPhase: This save does not run here.
        """
        save, begun = self._require_running(checkpoint_id)
        if save.closed_at is None:
            raise InvalidPhase("close_admission comes before the cut")
        if folder != begun.folder:
            raise InvalidRequest("folder: not the one that this checkpoint has reserved")
        if checkpoint_id not in self._cuts and self._job.storing.running:
            raise DataPlaneBusy("TransferQueue's save of an earlier try has not returned")
        return await self._cuts.run(
            checkpoint_id, None, lambda: self._cut(save, folder, timeout_s), record=lambda _: True
        )

    def renew(self, checkpoint_id: str, lease_s: float) -> bool:
        """Extend the lease to `lease_s` from now; False if this save does not run.

        Raises:
            ControllerLost: The controller was not started, or the job has failed.
        """
        self._job.require_started()
        self._lease.check()
        if self._save is None or self._save.checkpoint_id != checkpoint_id:
            return False
        self._lease.extend(lease_s)
        return True

    def resume(self, checkpoint_id: str, published: str | None) -> float | None:
        """Open admission; also the compensation's last step, and answered by a failed job.

        Args:
            checkpoint_id: The save; from now on it can do nothing here, whatever it was.
            published: Name of its snapshot, if there is one.

        Returns:
            Seconds from admission closing to opening; None if it never closed for this id.

        Raises:
            ControllerLost: The controller was not started.
        """
        _ = self._job.loader
        self._lease.check()
        save = self._save
        if save is not None and save.checkpoint_id == checkpoint_id:
            self._end(save, keep_folder=published is not None)
        ended = self._ended.add(checkpoint_id)
        if published is not None:
            self._job.note_snapshot(published, ended.mark)
        return ended.pause_s

    # --- private ------------------------------------------------------------------------------

    def _require_usable(self, checkpoint_id: str) -> None:
        self._lease.check()
        self._job.require_started()
        self._ended.require_not_ended(checkpoint_id)

    def _require_running(self, checkpoint_id: str) -> tuple[Save, BeginAnswer]:
        """The save of this id, its lease extended, and the answer of its begin."""
        self._require_usable(checkpoint_id)
        save = self._save
        if save is not None and save.checkpoint_id != checkpoint_id:
            raise CheckpointConflict(f"another save runs: {save.checkpoint_id}")
        begun: BeginAnswer | None = self._begins.answer(checkpoint_id)
        if save is None or begun is None:
            raise InvalidPhase("begin_checkpoint comes first")
        self._lease.extend(self._job.config.save.lease_s)
        return save, begun

    @staticmethod
    def _require_not_ended(save: Save) -> None:
        if save.ended:
            raise stale(save.checkpoint_id, SINGLE_CONTROLLER)

    async def _begin(self, save: Save, name: str | None) -> BeginAnswer:
        job, folder = self._job, self._others.folder
        try:
            if name is None:
                await require_changed(job, self._others)
            await require_open_servers(job, self._others)
            # One at a time: a slow begin that has ended meanwhile must not sweep the folder that
            # the next save writes in.
            async with self._at_the_folder:
                self._require_not_ended(save)
                await require_space(job, self._others)
                self._require_not_ended(save)
                tmp, snapshot = await asyncio.to_thread(
                    folder.reserve, save.checkpoint_id, job.incarnation
                )
        except BaseException:
            self._let_go(save)
            raise
        if save.ended:  # `_clear_away` may have come before the folder
            await asyncio.to_thread(folder.discard, save.checkpoint_id)
        self._require_not_ended(save)
        return BeginAnswer(
            agreed=True,
            incarnation=job.incarnation,
            folder=tmp,
            snapshot=snapshot,
            settings=job.config.save,
        )

    async def _cut(self, save: Save, folder: str, timeout_s: float) -> CutAnswer:
        path = self._job.config.job_folder / folder
        try:
            async with asyncio.timeout(timeout_s):
                answer, mark = await take_cut(self._job, self._others, save.checkpoint_id, path)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the cut was not complete after {timeout_s:g} s", participant=SINGLE_CONTROLLER
            ) from None
        self._lease.check()  # the lease may have ended and its timer not have run
        self._require_not_ended(save)
        save.mark = mark
        return answer

    def _on_lease_end(self) -> None:
        if self._save is not None:
            ids = {"checkpoint_id": self._save.checkpoint_id}
            _log.warning("lease ended", extra={"event": "lease_ended", **ids})
            self._end(self._save, keep_folder=False)

    def _on_job_failure(self) -> None:
        if self._save is not None:
            self._end(self._save, keep_folder=False)

    def _let_go(self, save: Save) -> None:
        """Free the controller of a save that has not begun; its id may try again."""
        if self._save is save:
            self._save = None
            self._lease.release()

    def _end(self, save: Save, *, keep_folder: bool) -> None:
        """Open admission, and let nothing of this save count any more. Takes effect at once."""
        save.ended = True
        self._let_go(save)
        ended = self._ended.add(save.checkpoint_id)
        ended.mark = save.mark
        if save.closed_at is not None:
            ended.pause_s = self._others.clock() - save.closed_at
        self._begins.forget(save.checkpoint_id)
        # The cut leaves the barrier; TransferQueue's save goes on by itself.
        self._cuts.cancel(save.checkpoint_id, stale(save.checkpoint_id, SINGLE_CONTROLLER))
        self._job.admission.open()
        if not keep_folder:
            task = asyncio.create_task(self._clear_away(save.checkpoint_id))
            self._clearing.add(task)
            task.add_done_callback(self._clearing.discard)

    async def _clear_away(self, checkpoint_id: str) -> None:
        await self._job.storing.settled(checkpoint_id)
        try:
            await asyncio.to_thread(self._others.folder.discard, checkpoint_id)
        except (OSError, TurnpointError) as error:
            code = error.code if isinstance(error, TurnpointError) else type(error).__name__
            _log.warning(code, extra={"event": "background_error"})
