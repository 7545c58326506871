"""What the parts of the Single Controller share: the job's state and its background tasks.

Guarantees: everything here is touched on one event loop. The first error of a background task
fails the job once; what is already RL's own stays as it is, and the answer is a restore.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gym.protocol import TurnpointError
from rl.controller.barrier import Barrier
from rl.errors import ControllerLost, DataPlaneLost, DatasetInvalid
from rl.messages import JobConfig, JobPhase, JoinedServer
from rl.records.loader import Loader
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.replay_index import ReplayIndex

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Admission:
    """Whether new runs are sent. Opening and closing take effect at once."""

    def __init__(self) -> None:
        """Open."""
        self._event = asyncio.Event()
        self._event.set()

    @property
    def is_open(self) -> bool:
        """Whether a run may be sent now."""
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
    """The job as the controller of one incarnation knows it."""

    def __init__(self, config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> None:
        """A job that is not started."""
        self.config = config
        self.incarnation = incarnation
        self.servers = servers
        self.barrier = Barrier()
        self.admission = Admission()
        self.ledger = RecoveryLedger()
        self.index = ReplayIndex()
        self.phase = JobPhase.STARTING
        self.reason: str | None = None
        """Why the job has failed."""
        self.rows_put = 0
        """Training rows that this incarnation has put, whatever is there under their keys."""
        self.saving: asyncio.Task[Any] | None = None
        """TransferQueue's newest save; it may outlive the cut that asked for it."""
        self._loader: Loader | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure: list[Callable[[], None]] = []

    @property
    def started(self) -> bool:
        """Whether it was started, fresh or restored."""
        return self._loader is not None

    @property
    def loader(self) -> Loader:
        """The loader of a started job.

        Raises:
            ControllerLost: It was not started.
        """
        if self._loader is None:
            raise ControllerLost("this controller was not started", participant="SingleController")
        return self._loader

    def install(self, loader: Loader, ledger: RecoveryLedger, index: ReplayIndex) -> None:
        """Start with this state."""
        self._loader = loader
        self.ledger = ledger
        self.index = index

    def require_started(self) -> None:
        """Refuse when there is nothing to speak for.

        Raises:
            ControllerLost: It was not started in this incarnation, or the job has failed.
        """
        if self.phase is JobPhase.FAILED:
            raise ControllerLost(
                f"the job has failed ({self.reason}): restore it", participant="SingleController"
            )
        _ = self.loader

    @property
    def agents(self) -> list[str]:
        """Names of the agents that joined."""
        return [server.name for server in self.servers if server.kind == "agent"]

    def agent_for(self, named: str | None) -> str:
        """The agent a row goes to: the one it names if that joined, else the only one.

        A fresh start has refused rows for an agent that is not there; a line that was begun
        before that was checked goes on with the only one.

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

    async def data_plane(self, operation: Awaitable[T]) -> T:
        """Await TransferQueue inside a barrier section, `data_plane_timeout_s` at most.

        Raises:
            DataPlaneLost: It took longer; what took effect is unknown, and the job has failed.
        """
        limit_s = self.config.data_plane_timeout_s
        work = asyncio.ensure_future(operation)
        try:
            while not (await asyncio.wait({work}, timeout=limit_s))[0]:
                if self.saving is None or self.saving.done():
                    lost = DataPlaneLost(
                        f"no answer in {limit_s:g} s: what took effect is unknown",
                        participant="TransferQueue",
                    )
                    self.fail(lost)
                    raise lost
                # A storage unit serves nothing while it saves; a condemned save may outlive
                # its barrier, and must not cost the job.
                await asyncio.wait({work, self.saving}, return_when=asyncio.FIRST_COMPLETED)
            return work.result()
        finally:
            work.cancel()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background; an error fails the job."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def on_failure(self, call: Callable[[], None]) -> None:
        """Have `call` called once when the job fails."""
        self._on_failure.append(call)

    def fail(self, error: BaseException) -> None:
        """End the job: nothing more is sent, taken over or saved."""
        if self.phase is JobPhase.FAILED:
            return
        self.phase = JobPhase.FAILED
        # A foreign error's text may quote a conversation: its kind alone is told.
        self.reason = str(error) if isinstance(error, TurnpointError) else type(error).__name__
        _log.error("job failed", extra={"event": "job_failed", "reason": self.reason})
        for call in self._on_failure:
            call()
        self.stop()

    def stop(self) -> None:
        """Cancel every background task."""
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
