"""Acknowledgements of finished results, sent to Gym in the background (design section 7).

Guarantees: an owed acknowledgement is repeated until Gym has answered 2xx, and only then removed
from the ledger. Before the next run of a failed one is sent, its agent has dropped it; after the
last one, every server has dropped what is left of the rollout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gym.protocol import OtherServer, ServerFault, TurnpointError
from gym.retry import TryAgain, retry
from rl.controller.job_state import JobState
from rl.errors import ActorLost
from rl.nemo_gym.client import NemoGymClient
from rl.records.rollout_record import RolloutRecord


class Acknowledgements:
    """Sends owed acknowledgements, and has servers drop failed runs."""

    def __init__(self, job: JobState, gym: NemoGymClient) -> None:
        self._job = job
        self._gym = gym

    def send(self, record: RolloutRecord) -> None:
        """Acknowledge a result just taken over; an error that no repeat can mend fails the job."""
        self._job.spawn(self._send(record))

    async def let_go(self, record: RolloutRecord) -> None:
        """Return when the agent holds nothing of a failed run; before the next one is sent."""
        await _until_answered(lambda: self._gym.let_go(record.rollout_id, record.agent))

    async def forget(self, record: RolloutRecord) -> None:
        """Return when no server holds anything of a rollout that has failed for good."""
        await _until_answered(lambda: self._gym.forget(record.rollout_id, record.agent))

    async def _send(self, record: RolloutRecord) -> None:
        digest = record.result_digest
        if digest is None:
            raise ValueError(f"{record.rollout_id} is not finished")
        await _until_answered(
            lambda: self._gym.acknowledge(
                record.rollout_id, record.run.attempt_index, digest, record.agent
            )
        )
        async with self._job.barrier.mutation():
            self._job.ledger.paid(record.rollout_id, digest)


async def _until_answered(call: Callable[[], Awaitable[None]]) -> None:
    async def once() -> None:
        try:
            await call()
        except TurnpointError as error:
            # The last three do not pass by themselves; a process started again ends them.
            if error.retryable or isinstance(error, (OtherServer, ServerFault, ActorLost)):
                raise TryAgain(error.code) from error
            raise

    await retry(once, on=TryAgain)
