"""State that the parts of the Single Controller share: the job and its background tasks.

Guarantees: everything here is touched on one event loop. The first error of a background task
fails the job once; results that RL has taken over stay as they are, and the answer is a restore.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from gym.protocol import TurnpointError
from gym.single_flight import SingleFlight
from rl.config import JobConfig
from rl.controller.barrier import Barrier
from rl.errors import ControllerLost, DataPlaneLost, DatasetInvalid
from rl.messages import SINGLE_CONTROLLER, JobPhase, JoinedServer
from rl.records.loader import Loader
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.replay_index import ReadyGroup
from rl.snapshots.names import number_of

_log = logging.getLogger(__name__)
T = TypeVar("T")

Mark = tuple[int, int]
"""Mutations so far and model calls staged: equal marks mean that nothing has changed."""


@dataclass(frozen=True)
class LastSnapshot:
    """The newest snapshot: saved here, or the one the job was restored from."""

    name: str | None = None
    mark: Mark | None = None
    """None if it was not saved here."""


class Admission:
    """Lets new runs be sent while it is open. Opening and closing take effect at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._event.set()

    @property
    def is_open(self) -> bool:
        """True if a run may be sent now."""
        return self._event.is_set()

    def open(self) -> None:
        """Send runs again; repeatable."""
        self._event.set()

    def close(self) -> None:
        """Send no further run; repeatable."""
        self._event.clear()

    async def wait_open(self) -> None:
        """Return while it is open: true at the return, not only at the wake-up."""
        while not self._event.is_set():
            await self._event.wait()


class JobState:
    """The job as the controller of one incarnation knows it; not started at first."""

    def __init__(self, config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> None:
        self.config = config
        self.incarnation = incarnation
        self.servers = servers
        self.barrier = Barrier()
        self.admission = Admission()
        self.ledger = RecoveryLedger()
        self.index: dict[str, ReadyGroup] = {}
        self.phase = JobPhase.STARTING
        self.reason: str | None = None
        """Reason why the job has failed."""
        self.rows_put = 0
        """Training rows put by this incarnation; a row that replaces another counts too."""
        self.storing = SingleFlight[str]("this checkpoint id", participant=SINGLE_CONTROLLER)
        """TransferQueue's saves by checkpoint id: nothing stops one, so it may outlive its cut."""
        self.last_snapshot = LastSnapshot()
        self._loader: Loader | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure: list[Callable[[], None]] = []

    @property
    def started(self) -> bool:
        """True if the job was started, fresh or restored."""
        return self._loader is not None

    @property
    def loader(self) -> Loader:
        """The loader of a started job.

        Raises:
            ControllerLost: The job was not started.
        """
        if self._loader is None:
            raise ControllerLost("this controller was not started", participant=SINGLE_CONTROLLER)
        return self._loader

    def install(
        self,
        loader: Loader,
        ledger: RecoveryLedger,
        index: dict[str, ReadyGroup],
        restored_from: str | None = None,
    ) -> None:
        """Start with this state; `restored_from` names the snapshot it was loaded from, if any."""
        self._loader = loader
        self.ledger = ledger
        self.index = index
        if restored_from is not None:
            self.phase = JobPhase.RESTORED
            self.last_snapshot = LastSnapshot(restored_from)

    def require_started(self) -> None:
        """Refuse an operation of a job that does not live here.

        Raises:
            ControllerLost: It was not started in this incarnation, or has failed.
        """
        if self.phase is JobPhase.FAILED:
            raise ControllerLost(
                f"the job has failed ({self.reason}): restore it", participant=SINGLE_CONTROLLER
            )
        _ = self.loader

    @property
    def agents(self) -> list[str]:
        """Names of the agents that joined."""
        return [server.name for server in self.servers if server.kind == "agent"]

    def agent_for(self, named: str | None) -> str:
        """The agent a row goes to: the one it names if that joined, else the only one.

        A fresh start refuses rows for an agent that is not there; jobs that were begun before
        that check existed go on with the only one.

        Raises:
            DatasetInvalid: There are several agents and the row names none of them.
        """
        agents = self.agents
        if named in agents:
            return str(named)
        if len(agents) == 1:
            return agents[0]
        raise DatasetInvalid(
            f"a row's agent_ref names no agent of this job; there are: {', '.join(agents)}"
        )

    def mark(self, staging_keys: set[str]) -> Mark:
        """The mark of this moment, given all keys of the partition of model calls."""
        return self.barrier.version, len(staging_keys)

    def note_snapshot(self, name: str, mark: Mark | None) -> None:
        """Remember a published snapshot, unless a newer one is known: a save may report late."""
        last = self.last_snapshot.name
        if last is None or number_of(name) >= number_of(last):
            self.last_snapshot = LastSnapshot(name, mark)

    def begin_sending(self) -> None:
        """Let the job run: rollouts are sent from now on."""
        self.phase = JobPhase.RUNNING

    def finish(self) -> None:
        """End a running job: every rollout is over and acknowledged."""
        if self.phase is JobPhase.RUNNING:
            self.phase = JobPhase.FINISHED

    def count_row(self) -> None:
        """Count a training row that was put."""
        self.rows_put += 1

    async def data_plane(self, operation: Awaitable[T]) -> T:
        """Await TransferQueue inside a barrier section, `data_plane_timeout_s` at most.

        Time in which TransferQueue saves does not count: a storage unit serves nothing meanwhile.

        Raises:
            DataPlaneLost: It took longer; what took effect is unknown, and the job has failed.
        """
        timeout_s = self.config.data_plane_timeout_s
        work = asyncio.ensure_future(operation)
        try:
            while not (await asyncio.wait({work}, timeout=timeout_s))[0]:
                if not (saves := self.storing.running):
                    lost = DataPlaneLost(
                        f"no answer in {timeout_s:g} s: what took effect is unknown",
                        participant="TransferQueue",
                    )
                    self.fail(lost)
                    raise lost
                stored = asyncio.ensure_future(self.storing.settled(saves[0]))
                await asyncio.wait({work, stored}, return_when=asyncio.FIRST_COMPLETED)
                stored.cancel()
            return work.result()
        finally:
            work.cancel()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background; an error fails the job."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    def on_failure(self, call: Callable[[], None]) -> None:
        """Have `call` called once when the job fails."""
        self._on_failure.append(call)

    def fail(self, error: BaseException) -> None:
        """End the job: nothing more is sent, taken over or saved."""
        if self.phase is JobPhase.FAILED:
            return
        self.phase = JobPhase.FAILED
        # The text of a foreign error may quote a conversation: only its type is logged.
        self.reason = str(error) if isinstance(error, TurnpointError) else type(error).__name__
        _log.error("job failed", extra={"event": "job_failed", "reason": self.reason})
        for call in self._on_failure:
            call()
        for task in list(self._tasks):
            task.cancel()

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
