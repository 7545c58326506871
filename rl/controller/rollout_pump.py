"""The rollout pump: sends runs and takes their results over (design section 7).

Guarantees: `next()`, the run number and the ledger reservation are one barrier section, and
`/run` follows it. A finished rollout's row, the ledger change and the owed acknowledgement are
one section; the staging rows are read before it. One task drives each rollout, so its result is
taken over exactly once. Restored unfinished rollouts go first. No run is sent while admission is
closed; results are taken over all the same.

A run that fails is dropped by its agent, since its result is never acknowledged, and started over
as run n+1, until `max_runs` have failed: then the rollout finishes as failed, with one row
without reward, and every server forgets it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from gym.protocol import (
    DigestMismatch,
    NotJoined,
    StaleIncarnation,
    StaleInstance,
    TurnpointError,
    Unauthorized,
    canonical_json,
    capture_key,
)
from rl.controller.acknowledgements import Acknowledgements
from rl.controller.collaborators import Collaborators
from rl.controller.job_state import JobState
from rl.data_plane.names import STAGING
from rl.data_plane.rows import StagingRow, TrainingRow, assemble
from rl.errors import DataPlaneLost, JobError
from rl.messages import RunRequest, RunResult
from rl.records.replay_index import ready_groups
from rl.records.rollout_record import RolloutRecord

_log = logging.getLogger(__name__)
_JOB_IS_LOST = (NotJoined, StaleIncarnation, StaleInstance, Unauthorized, JobError)
"""Errors of a run that no further run can mend: a process with state was lost, either the agent
(it answers so itself) or a server that it calls (the run fails with that error)."""


class RolloutPump:
    """Keeps `max_inflight` rollouts under way until the loader's end."""

    def __init__(self, job: JobState, collaborators: Collaborators) -> None:
        self._job = job
        self._data_plane = collaborators.data_plane
        self._gym = collaborators.gym
        self._acknowledgements = Acknowledgements(job, collaborators.gym)
        self._again: int | None = None

    def start(self) -> int:
        """Begin to send; repeatable.

        Returns:
            Number of restored unfinished rollouts that are sent again.
        """
        if self._again is None:
            again = [r.rollout_id for r in self._job.ledger.values() if r.unfinished]
            self._again = len(again)
            self._job.begin_sending()
            self._job.spawn(self._feed(again))
        return self._again

    async def _feed(self, again: list[str]) -> None:
        slots = asyncio.Semaphore(self._job.loader.workload.max_inflight)
        under_way: set[asyncio.Task[None]] = set()
        while True:
            await slots.acquire()
            rollout_id = again.pop(0) if again else await self._reserve()
            if rollout_id is None:
                break
            task = self._job.spawn(self._drive(rollout_id))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            task.add_done_callback(lambda _: slots.release())
        if under_way:
            await asyncio.wait(under_way)
        await self._job.ledger.wait_paid()
        self._job.finish()

    async def _reserve(self) -> str | None:
        await self._job.admission.wait_open()
        async with self._job.barrier.mutation():
            prompt = self._job.loader.next()
            if prompt is None:
                return None
            agent = self._job.agent_for(prompt.agent)
            self._job.ledger.reserve(prompt.rollout_id, agent, self._job.incarnation)
            return prompt.rollout_id

    async def _drive(self, rollout_id: str) -> None:
        """One rollout, over as many runs as it takes."""
        row = self._job.loader.prompt(rollout_id).row
        while (record := self._job.ledger[rollout_id]).unfinished:
            await self._job.admission.wait_open()
            attempt = record.run.attempt_index
            self._job.ledger.started(rollout_id, attempt)
            request = RunRequest(
                rollout_id=rollout_id, attempt_index=attempt, agent=record.agent, row=row
            )
            try:
                result = await self._gym.run(request)
                chain = await self._chain(result)
            except _JOB_IS_LOST:
                raise
            except TurnpointError as error:
                if await self._fail(record, error):
                    await self._acknowledgements.forget(record)
                else:
                    await self._acknowledgements.let_go(record)
            else:
                await self._take_over(result, chain)

    async def _chain(self, result: RunResult) -> list[StagingRow]:
        """The staging rows of a result, oldest first, each the one that the ledger names."""
        if hashlib.sha256(result.result).hexdigest() != result.result_digest:
            raise DigestMismatch("the result is not what its agent digested")
        keys = [record.coordinates.key for record in result.records]
        rows = await self._job.data_plane(self._data_plane.get_staging(keys))
        if missing := [key for key in keys if key not in rows]:
            raise DataPlaneLost(
                f"{len(missing)} staging rows are missing", details={"keys": missing[:100]}
            )
        for record in result.records:
            key = record.coordinates.key
            if rows[key].coordinates(key) != record.coordinates:
                raise DataPlaneLost("a staging row is not the one staged", details={"key": key})
        return [rows[key] for key in keys]

    async def _take_over(self, result: RunResult, chain: list[StagingRow]) -> None:
        """Make a result RL's own: its row, the ledger, and the acknowledgement from now on owed.

        Args:
            result: Answer of the run that is under way.
            chain: Its staging rows, oldest first.
        """
        ledger = self._job.ledger
        row = assemble(chain, result.reward, result.result)
        async with self._job.barrier.mutation():
            ledger.under_way(result.rollout_id, result.attempt_index)  # before its row is put
            await self._put(result.rollout_id, row, _tag(result))
            record = ledger.finish(
                result.rollout_id,
                result.attempt_index,
                reward=result.reward,
                result_digest=result.result_digest,
                staging_keys=[record.coordinates.key for record in result.records],
            )
            if record.failed_runs:
                # A call of theirs may have been staged after they had failed.
                await self._job.data_plane(self._clear_staged(record))
            self._update_index(result.rollout_id)
        self._acknowledgements.send(record)

    async def _fail(self, record: RolloutRecord, error: TurnpointError) -> bool:
        """Record that a run has failed, and run n+1, or finish the rollout as failed.

        Returns:
            True if the rollout has finished.
        """
        rollout_id, attempt = record.rollout_id, record.run.attempt_index
        ledger = self._job.ledger
        _log.warning(
            error.code, extra={"event": "run_failed", "rollout_id": rollout_id, "attempt": attempt}
        )
        async with self._job.barrier.mutation():
            await self._job.data_plane(self._clear_staged(record))
            failed = ledger.fail(rollout_id, attempt, error.code)
            if failed.failed_runs < self._job.config.max_runs:
                ledger.next_run(rollout_id, self._job.incarnation)
                return False
            row = assemble([], None, canonical_json({"failed": error.code}))
            tag = {"rollout_id": rollout_id, "attempt_index": attempt, "failed": error.code}
            empty = {"reward": None, "turns": 0, "mutations": 0}
            await self._put(rollout_id, row, tag | empty)
            self._update_index(rollout_id)
            return True

    async def _put(self, rollout_id: str, row: TrainingRow, tag: dict[str, object]) -> None:
        """Put a finished rollout's row, and count it: a second put would only overwrite it."""
        await self._job.data_plane(self._data_plane.put_training(rollout_id, row, tag))
        self._job.count_row()

    async def _clear_staged(self, record: RolloutRecord) -> None:
        """Clear rows staged for the rollout, except those that it owns as finished."""
        owned = set(record.staging_keys) if record.finished else set()
        names = {capture_key(record.rollout_id, run.attempt_index) for run in record.runs}
        staged = await self._data_plane.keys(STAGING) - owned
        await self._data_plane.clear(STAGING, [k for k in staged if k.split("/")[1] in names])

    def _update_index(self, rollout_id: str) -> None:
        """Add the rollout's group to the replay index if this was the last of its rollouts."""
        ledger, group = self._job.ledger, self._job.loader.group
        members = {name: ledger[name] for name in group(rollout_id)[1] if name in ledger}
        self._job.index.update(ready_groups(members, group))


def _tag(result: RunResult) -> dict[str, object]:
    """Values that a reader of the row needs without reading it."""
    revisions = result.resource_revisions.values()
    return {
        "rollout_id": result.rollout_id,
        "attempt_index": result.attempt_index,
        "turns": len(result.records),
        "reward": result.reward,
        "mutations": sum(revision for revision in revisions if revision is not None),
        "result_digest": result.result_digest,
        "capture_keys": list(dict.fromkeys(record.capture_key for record in result.records)),
    }
