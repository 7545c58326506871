"""The controller's side of a restore: load, compare, give the runs n+1, discard the rest.

Guarantees: nothing is installed before everything has been read, verified and compared; each
operation has the effect of once per restore id. Each unfinished rollout gets exactly run n+1,
computed from the file. After the discards no unreferenced staging row is left.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from gym.protocol import CheckpointConflict, InvalidPhase, WrittenFile
from gym.single_flight import SingleFlight
from rl.controller.collaborators import Collaborators
from rl.controller.job_state import JobState
from rl.data_plane.names import STAGING, TRAINING
from rl.messages import SINGLE_CONTROLLER, ContinuedRollout, StartAnswer
from rl.records.inventories import (
    MatchedInventory,
    compare,
    compare_restored,
    rollouts_to_restart,
)
from rl.records.loader import Loader
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.snapshot_part import read_records

_START, _DISCARD = "start", "discard"


class RestoreCoordinator:
    """Restores one controller, at most once; another try starts another controller."""

    def __init__(self, job: JobState, collaborators: Collaborators) -> None:
        self._job = job
        self._data_plane = collaborators.data_plane
        self._gym = collaborators.gym
        self._restore_id: str | None = None
        self._matched: MatchedInventory | None = None
        self._steps = SingleFlight[str]("this step", participant=SINGLE_CONTROLLER)

    @property
    def claimed(self) -> bool:
        """True if a restore has loaded this controller, or is about to."""
        return self._restore_id is not None

    def require_discarded(self) -> None:
        """Refuse to send rollouts of a restore before its discards.

        Raises:
            InvalidPhase: They are not over.
        """
        if self.claimed and self._steps.answer(_DISCARD) is None:
            raise InvalidPhase("discard_continuations comes before the pumps")

    async def start(self, restore_id: str, folder: Path, files: list[WrittenFile]) -> StartAnswer:
        """Load ledger, loader and index; nothing is sent yet.

        Raises:
            DigestMismatch, SnapshotDamaged, UnsupportedSchema: A file of RL's; it is named.
            DatasetInvalid, TopologyMismatch: The dataset is not the one of the save.
            InventoryMismatch: Ledger, servers and TransferQueue disagree.
            CheckpointConflict: Another restore or a fresh start came first.
        """
        self._claim(restore_id)
        if self._job.started and _START not in self._steps:
            raise CheckpointConflict("this controller has started a fresh job")
        return await self._steps.run(
            _START, None, lambda: self._start(restore_id, folder, files), record=lambda _: True
        )

    async def discard(self, restore_id: str) -> list[ContinuedRollout]:
        """Let rollouts that cannot continue start over; clear staging rows without an owner.

        Returns:
            The rollouts that start over, each with its reason.

        Raises:
            ControllerLost: Nothing was started, or the job has failed.
            InvalidPhase: `start` comes first.
            CheckpointConflict: Another restore loaded this controller.
        """
        self._job.require_started()
        matched = self._matched
        if matched is None:
            raise InvalidPhase("start_controller comes before the discards")
        self._claim(restore_id)
        return await self._steps.run(
            _DISCARD, None, lambda: self._discard(restore_id, matched), record=lambda _: True
        )

    def _claim(self, restore_id: str) -> None:
        if self._restore_id not in (None, restore_id):
            raise CheckpointConflict("another restore loads this controller")
        self._restore_id = restore_id

    async def _start(self, restore_id: str, folder: Path, files: list[WrittenFile]) -> StartAnswer:
        saved = await asyncio.to_thread(read_records, folder, files)
        loader = await asyncio.to_thread(Loader.resume, saved.place)
        saved.require_agreement(loader)
        ledger = RecoveryLedger(saved.records.values())
        unfinished = [record.rollout_id for record in saved.records.values() if record.unfinished]
        for rollout_id in unfinished:
            ledger.next_run(rollout_id, self._job.incarnation)
        matched = compare(
            ledger,
            await self._gym.restored_inventory(restore_id),
            staging_keys=await self._job.data_plane(self._data_plane.keys(STAGING)),
            training_keys=await self._job.data_plane(self._data_plane.keys(TRAINING)),
        )
        compare_restored(saved.records, matched)
        self._job.install(loader, ledger, saved.groups, restored_from=folder.name)
        self._matched = matched
        return StartAnswer(
            unfinished=[self._continued(matched, rollout_id) for rollout_id in unfinished],
            finished=len(ledger) - len(unfinished),
        )

    async def _discard(self, restore_id: str, matched: MatchedInventory) -> list[ContinuedRollout]:
        reasons = rollouts_to_restart(matched, self._job.servers)
        if reasons:
            await self._gym.discard(restore_id, list(reasons))
        ledger = self._job.ledger
        async with self._job.barrier.mutation():
            for rollout_id in reasons:
                ledger.disown(rollout_id)
            owned = {key for record in ledger.values() for key in record.staging_keys}
            staged = await self._job.data_plane(self._data_plane.keys(STAGING))
            await self._job.data_plane(self._data_plane.clear(STAGING, staged - owned))
            await self._job.data_plane(self._data_plane.reset_claims(TRAINING))
        return [
            self._continued(matched, rollout_id, reason)
            for rollout_id, reason in reasons.items()
            if ledger[rollout_id].unfinished
        ]

    def _continued(
        self, matched: MatchedInventory, rollout_id: str, restarted_because: str | None = None
    ) -> ContinuedRollout:
        line = matched.continuations.get(rollout_id)
        return ContinuedRollout(
            rollout_id=rollout_id,
            attempt_index=self._job.ledger[rollout_id].run.attempt_index,
            last_committed_model_call_id=line.last_committed_model_call_id
            if line and not restarted_because
            else None,
            restarted_because=restarted_because,
        )
