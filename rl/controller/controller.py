"""The Single Controller as a plain class: `rl.controller.actor` is the Ray actor around it.

Guarantees: it sends no run before `start_pumps`; not started, or failed, it refuses everything
with `controller_lost`, except `status` and `saves.resume` of a failed job. It never talks to a Gym
server: NemoGym does. All methods run on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from gym.protocol import CheckpointConflict
from rl.config import Workload
from rl.controller.collaborators import Collaborators
from rl.controller.job_state import JobState
from rl.controller.restore import RestoreCoordinator
from rl.controller.rollout_pump import RolloutPump
from rl.controller.save import SaveCoordinator
from rl.messages import ControllerStatus
from rl.records.loader import Loader
from rl.records.recovery_ledger import RecoveryLedger


class Controller:
    """One job in one incarnation.

    Args:
        job: The job; not started.
        collaborators: Data plane, host, NemoGym, folder and clocks.
    """

    def __init__(self, job: JobState, collaborators: Collaborators) -> None:
        self.job = job
        self.saves = SaveCoordinator(job, collaborators)
        self.restore = RestoreCoordinator(job, collaborators)
        self._pump = RolloutPump(job, collaborators)

    async def start_fresh(self, workload: Workload) -> None:
        """Start at the first prompt; repeatable with the same workload.

        Raises:
            DatasetInvalid: The dataset does not parse, or a row is for an agent that is not there.
            CheckpointConflict: A restore or another workload came first.
        """
        if not self.restore.claimed and not self.job.started:
            loader = await asyncio.to_thread(Loader.open, workload)
            loader.dataset.require_agents(self.job.agents)
            if not self.job.started:  # a repeat of this call may have been faster
                self.job.install(loader, RecoveryLedger(), {})
        if self.restore.claimed or self.job.loader.workload != workload:
            raise CheckpointConflict("this controller was started otherwise")

    def start_pumps(self) -> int:
        """Begin to send, restored rollouts first; repeatable.

        Returns:
            Number of restored unfinished rollouts that are sent again.

        Raises:
            InvalidPhase: The discards of a restore are not over.
        """
        self.job.require_started()
        self.restore.require_discarded()
        return self._pump.start()

    def status(self) -> ControllerStatus:
        """State of the job; always answered."""
        return status_of(self.job, self.saves)


def status_of(job: JobState, saves: SaveCoordinator | None = None) -> ControllerStatus:
    """State of a job, with the save that runs, if any."""
    records = job.ledger.values()
    failures = Counter(r.run.failure or "unknown" for r in records if r.failed)
    return ControllerStatus(
        job_id=job.config.job_id,
        incarnation=job.incarnation,
        state=job.phase,
        reason=job.reason,
        checkpoint_id=saves.checkpoint_id if saves else None,
        lease_left_s=saves.lease_left_s if saves else None,
        # In this order: a lease that has ended opens admission when it is looked at.
        admission_open=job.started and job.admission.is_open,
        rollouts=len(records),
        rollouts_total=job.loader.total if job.started else 0,
        running=sum(record.unfinished for record in records),
        finished=sum(record.finished for record in records),
        failed=sum(record.failed for record in records),
        failures=dict(failures.most_common()),
        owed=len(job.ledger.owed()),
        rows_put=job.rows_put,
        last_snapshot=job.last_snapshot.name,
    )
