"""The Single Controller as a plain class: `rl.controller.actor` is the Ray actor around it.

Guarantees: it decides when to save and sends no run on its own before `start_pumps`; not started,
or failed, it refuses everything with `controller_lost`, but `status` and `resume_checkpoint` of a
failed job. It never talks to a Gym server: NemoGym does. All methods run on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from gym.protocol import CheckpointConflict, InvalidPhase, WrittenFile
from rl.controller.job_state import JobState
from rl.controller.ports import Collaborators
from rl.controller.restore import Restoring
from rl.controller.rollout_pump import RolloutPump
from rl.controller.save import CheckpointDesk
from rl.controller.saves import LastSnapshot
from rl.messages import (
    BeginAnswer,
    ContinuedRollout,
    ControllerStatus,
    CutAnswer,
    JobConfig,
    JobPhase,
    JoinedServer,
    StartAnswer,
    Workload,
)
from rl.records.loader import Loader
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.replay_index import ReplayIndex


class Controller:
    """One job in one incarnation.

    Args:
        config: The job's configuration.
        incarnation: The one it speaks for.
        servers: The Gym servers that joined it.
        with_: Data plane, host, NemoGym, folder and clocks.
    """

    def __init__(
        self,
        config: JobConfig,
        incarnation: int,
        servers: list[JoinedServer],
        with_: Collaborators,
    ) -> None:
        """Not started."""
        self.job = JobState(config, incarnation, servers)
        self.desk = CheckpointDesk(self.job, with_)
        self.pump = RolloutPump(self.job, with_.data_plane, with_.gym)
        self._restoring = Restoring(self.job, with_.data_plane, with_.gym)

    # --- a save -------------------------------------------------------------------------------

    async def begin_checkpoint(self, checkpoint_id: str, name: str | None) -> BeginAnswer:
        """See `CheckpointDesk.begin`."""
        return await self.desk.begin(checkpoint_id, name)

    async def close_admission(self, checkpoint_id: str, budget_s: float) -> int:
        """See `CheckpointDesk.close_admission`."""
        return await self.desk.close_admission(checkpoint_id, budget_s)

    async def cut_rl_state(self, checkpoint_id: str, folder: str, budget_s: float) -> CutAnswer:
        """See `CheckpointDesk.cut`."""
        return await self.desk.cut(checkpoint_id, folder, budget_s)

    def renew(self, checkpoint_id: str, lease_s: float) -> bool:
        """See `CheckpointDesk.renew`."""
        self.job.require_started()
        return self.desk.renew(checkpoint_id, lease_s)

    def resume_checkpoint(self, checkpoint_id: str, published: str | None) -> float | None:
        """See `CheckpointDesk.resume`."""
        _ = self.job.loader  # a failed job's save is ended all the same
        return self.desk.resume(checkpoint_id, published)

    # --- starting -----------------------------------------------------------------------------

    async def start_fresh(self, workload: Workload) -> None:
        """Start at the first prompt; repeatable with the same workload.

        Raises:
            DatasetInvalid: The dataset does not parse, or a row is for an agent that is not there.
            CheckpointConflict: It was started otherwise before.
        """
        if self._restoring.restore_id is None and not self.job.started:
            loader = await asyncio.to_thread(Loader.open, workload)
            loader.demand_agents(self.job.agents)
            if not self.job.started:  # the same call may have been faster
                self.job.install(loader, RecoveryLedger(), ReplayIndex())
        if self._restoring.restore_id is not None or self.job.loader.workload != workload:
            raise CheckpointConflict("this controller was started otherwise")

    async def start_restored(
        self, restore_id: str, folder: Path, files: list[WrittenFile]
    ) -> StartAnswer:
        """See `Restoring.start`."""
        answer = await self._restoring.start(restore_id, folder, files)
        if self.desk.last.name is None:
            self.desk.last = LastSnapshot(folder.name)
        return answer

    async def discard_continuations(self, restore_id: str) -> list[ContinuedRollout]:
        """See `Restoring.discard`."""
        self.job.require_started()
        return await self._restoring.discard(restore_id)

    def start_pumps(self) -> int:
        """Begin to send, restored rollouts first; repeatable.

        Returns:
            How many restored unfinished rollouts are sent again.

        Raises:
            InvalidPhase: The discards of a restore are not over.
        """
        self.job.require_started()
        if self._restoring.restore_id is not None and not self._restoring.may_send:
            raise InvalidPhase("discard_continuations comes before the pumps")
        return self.pump.start()

    # --- looking ------------------------------------------------------------------------------

    def status(self) -> ControllerStatus:
        """Where the job stands; always answered."""
        job, records = self.job, self.job.ledger.copy().values()
        return ControllerStatus(
            job_id=job.config.job_id,
            incarnation=job.incarnation,
            state=job.phase,
            reason=job.reason,
            checkpoint_id=self.desk.checkpoint_id,
            lease_left_s=self.desk.lease_left_s,
            admission_open=job.admission.is_open,
            rollouts=len(records),
            rollouts_total=job.loader.total if job.started else 0,
            running=sum(record.unfinished for record in records),
            finished=sum(record.finished for record in records),
            failed=sum(record.failed for record in records),
            failures=dict(
                Counter(r.run.failure or "unknown" for r in records if r.failed).most_common()
            ),
            owed=len(job.ledger.owed()),
            rows_put=job.rows_put,
            last_snapshot=self.desk.last.name,
        )

    def servers(self) -> list[JoinedServer]:
        """The servers of the job, as they joined; a NemoGym actor that came back asks for them."""
        return self.job.servers


def not_started(config: JobConfig, incarnation: int) -> ControllerStatus:
    """Status of a controller that has not been told to start."""
    return ControllerStatus(
        job_id=config.job_id,
        incarnation=incarnation,
        state=JobPhase.STARTING,
        admission_open=False,
        checkpoint_id=None,
        lease_left_s=None,
        rollouts=0,
        rollouts_total=0,
        running=0,
        finished=0,
        failed=0,
        owed=0,
        last_snapshot=None,
    )
