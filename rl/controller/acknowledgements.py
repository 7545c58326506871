"""Telling Gym that finished results are RL's own, in the background (design section 7).

Guarantees: what the ledger owes is sent until Gym has answered 2xx, and only then removed from
it. A result that the ledger does not expect is acknowledged and dropped; one whose run counts as
failed is dropped by its agent, and what is left of a rollout that has failed by every server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gym.protocol import OtherServer, ServerFault, TurnpointError
from rl.controller.job_state import JobState
from rl.controller.ports import GymPort
from rl.errors import ActorLost
from rl.messages import RunResult
from rl.records.recovery_ledger import RolloutRecord

_log = logging.getLogger(__name__)
_FIRST_S, _MOST_S = 0.05, 1.0
_MENDED = (OtherServer, ServerFault, ActorLost)
"""Not of a kind that passes, but somebody may start what answers wrongly again."""


class Acknowledgements:
    """Sends what is owed."""

    def __init__(self, job: JobState, gym: GymPort) -> None:
        """Nothing is under way."""
        self._job = job
        self._gym = gym

    def send(self, record: RolloutRecord) -> None:
        """Acknowledge a result just taken over; an error that no repeat can mend fails the job."""
        self._job.spawn(self._pay(record))

    def drop(self, result: RunResult, agent: str) -> None:
        """Acknowledge a result that is not expected; the agent's refusal is of no consequence."""
        self._job.spawn(self._dropped(result, agent))

    async def let_go(self, record: RolloutRecord) -> None:
        """Return when the agent holds nothing of a failed run; before the next one is sent."""
        await self._until_answered(lambda: self._gym.let_go(record.rollout_id, record.agent))

    async def forget(self, record: RolloutRecord) -> None:
        """Return when no server holds anything of a rollout that has failed for good."""
        await self._until_answered(lambda: self._gym.forget(record.rollout_id, record.agent))

    async def _pay(self, record: RolloutRecord) -> None:
        digest = record.result_digest
        if digest is None:
            raise ValueError(f"{record.rollout_id} is not finished")
        await self._repeat(record.rollout_id, record.run.attempt_index, digest, record.agent)
        async with self._job.barrier.mutation():
            self._job.ledger.paid(record.rollout_id, digest)

    async def _dropped(self, result: RunResult, agent: str) -> None:
        ids = {"rollout_id": result.rollout_id, "attempt": result.attempt_index}
        _log.warning("unexpected result dropped", extra={"event": "result_dropped", **ids})
        try:
            await self._repeat(result.rollout_id, result.attempt_index, result.result_digest, agent)
        except TurnpointError as error:
            # An agent that has gone on to a newer run has dropped this result by itself.
            _log.warning(error.code, extra={"event": "drop_refused", **ids})

    async def _repeat(self, rollout_id: str, attempt: int, digest: str, agent: str) -> None:
        await self._until_answered(
            lambda: self._gym.acknowledge(rollout_id, attempt, digest, agent)
        )

    @staticmethod
    async def _until_answered(call: Callable[[], Awaitable[None]]) -> None:
        pause_s = _FIRST_S
        while True:
            try:
                return await call()
            except TurnpointError as error:
                if not (
                    error.retryable or isinstance(error, (OtherServer, ServerFault, ActorLost))
                ):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(_MOST_S, 2 * pause_s)
