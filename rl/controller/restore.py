"""The controller's side of a restore: load, compare, give the runs n+1, throw away what must be.

Guarantees: nothing is installed before everything has been read, verified and compared; each
operation has the effect of once per restore id. Each unfinished rollout gets exactly run n+1,
computed from the file. After the discards no unreferenced staging row is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from gym.protocol import CheckpointConflict, InvalidPhase, WrittenFile
from rl.controller.cut import demand_agreement, read_picture
from rl.controller.job_state import JobState
from rl.controller.ports import DataPlanePort, GymPort
from rl.data_plane.names import STAGING, TRAINING
from rl.messages import ContinuedRollout, JobPhase, StartAnswer
from rl.records.inventories import Held, compare, compare_restored, who_starts_over
from rl.records.loader import Loader
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.replay_index import ReplayIndex

T = TypeVar("T")


class Restoring:
    """One controller is restored at most once; another try starts another controller."""

    def __init__(self, job: JobState, data_plane: DataPlanePort, gym: GymPort) -> None:
        """Nothing is loaded."""
        self._job = job
        self._data_plane = data_plane
        self._gym = gym
        self._restore_id: str | None = None
        self._held: Held | None = None
        self._done: dict[str, asyncio.Task[Any]] = {}

    @property
    def restore_id(self) -> str | None:
        """The restore that loaded this controller, or is about to."""
        return self._restore_id

    @property
    def may_send(self) -> bool:
        """Whether the discards are over."""
        discards = self._done.get("discard")
        return discards is not None and discards.done() and discards.exception() is None

    async def start(self, restore_id: str, folder: Path, files: list[WrittenFile]) -> StartAnswer:
        """Load ledger, loader and index; nothing is sent yet.

        Raises:
            DigestMismatch, SnapshotDamaged, UnsupportedSchema: A file of RL's; it is named.
            DatasetInvalid, TopologyMismatch: The dataset is not the one of the save.
            InventoryMismatch: Ledger, servers and TransferQueue disagree.
            CheckpointConflict: Something else started this controller.
        """
        self._claim(restore_id)
        if self._job.started and "start" not in self._done:
            raise CheckpointConflict("this controller has started a fresh job")
        return await self._once("start", self._start(restore_id, folder, files))

    async def discard(self, restore_id: str) -> list[ContinuedRollout]:
        """Have those that cannot continue start over; clear what nobody references.

        Returns:
            The rollouts that start over, each with its reason.

        Raises:
            InvalidPhase: `start` comes first.
            CheckpointConflict: Another restore loaded this controller.
        """
        if self._held is None:
            raise InvalidPhase("start_controller comes before the discards")
        self._claim(restore_id)
        return await self._once("discard", self._discard(restore_id, self._held))

    def _claim(self, restore_id: str) -> None:
        if self._restore_id not in (None, restore_id):
            raise CheckpointConflict("another restore loads this controller")
        self._restore_id = restore_id

    async def _once(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        task = self._done.get(name)
        if task is None or (task.done() and task.exception() is not None):
            task = self._done[name] = asyncio.create_task(work)
        else:
            work.close()
        result: T = await asyncio.shield(task)
        return result

    async def _start(self, restore_id: str, folder: Path, files: list[WrittenFile]) -> StartAnswer:
        picture = await asyncio.to_thread(read_picture, folder, files)
        loader = await asyncio.to_thread(Loader.resume, picture.place)
        demand_agreement(picture, loader.given(), loader.group)
        ledger = RecoveryLedger(picture.records.values())
        unfinished = [record for record in picture.records.values() if record.unfinished]
        for record in unfinished:
            ledger.next_run(record.rollout_id, self._job.incarnation)
        held = compare(
            ledger.copy(),
            await self._gym.restored_inventory(restore_id),
            staging_keys=await self._job.data_plane(self._data_plane.keys(STAGING)),
            training_keys=await self._job.data_plane(self._data_plane.keys(TRAINING)),
        )
        compare_restored(picture.records, held)
        self._job.install(loader, ledger, ReplayIndex(picture.groups.values()))
        self._job.phase = JobPhase.RESTORED
        self._held = held
        return StartAnswer(
            unfinished=[self._continued(record.rollout_id) for record in unfinished],
            finished=len(ledger) - len(unfinished),
        )

    async def _discard(self, restore_id: str, held: Held) -> list[ContinuedRollout]:
        reasons = who_starts_over(held, self._job.servers)
        if reasons:
            await self._gym.discard(restore_id, list(reasons))
        ledger = self._job.ledger
        async with self._job.barrier.mutation():
            for rollout_id in reasons:
                ledger.disown(rollout_id)
            owned = {key for record in ledger.copy().values() for key in record.staging_keys}
            staged = await self._job.data_plane(self._data_plane.keys(STAGING))
            await self._job.data_plane(self._data_plane.clear(STAGING, staged - owned))
            await self._job.data_plane(self._data_plane.reset_claims(TRAINING))
        return [
            self._continued(name, reason)
            for name, reason in reasons.items()
            if ledger[name].unfinished
        ]

    def _continued(self, rollout_id: str, restarted_because: str | None = None) -> ContinuedRollout:
        record = self._job.ledger[rollout_id]
        line = self._held.continuations.get(rollout_id) if self._held else None
        last = line.last_committed_model_call_id if line and not restarted_because else None
        return ContinuedRollout(
            rollout_id=rollout_id,
            attempt_index=record.run.attempt_index,
            last_committed_model_call_id=last,
            restarted_because=restarted_because,
        )
