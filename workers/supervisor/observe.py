"""The supervisor's observations: processes of the stack, Gym servers, the job in Ray, its claims.

Guarantees: an observation changes nothing, and takes nothing for lost because it did not answer a
question: processes that are being started, and looks into Ray that began before the job came to
life, are left out. A claim counts as worked on until a look into Ray that began after its claimant
had ended.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection

from gym.client import GymClient
from gym.protocol import Capabilities, ServerUnreachable, TurnpointError
from rl.snapshots import incarnations
from workers.config import gym_servers
from workers.config.settings import Settings, load_settings
from workers.errors import WorkerRoomError
from workers.job.cluster_view import ClusterView
from workers.job.ray_client import JobWatch
from workers.job.restarts import Restarter
from workers.job.workflows import is_running
from workers.supervisor.decide import Observation
from workers.temporal import connect

ANSWER_TIMEOUT_S = 2.0
CLAIM_TIMEOUT_S = 120.0
"""For a claimant that is no workflow (another `run`): nothing tells whether it still works."""


class Observer:
    """Observes one job and its stack.

    Args:
        settings: Of the job; replaced when the stack was started again by another command.
        watch: Looks into Ray.
        restarter: Knows what is being started.
    """

    def __init__(self, settings: Settings, watch: JobWatch, restarter: Restarter) -> None:
        self.settings = settings
        self._watch = watch
        self._restarter = restarter
        self.on_new_life(time.monotonic())
        self._claim_seen: tuple[int, float] = (0, 0.0)
        self._claim_left: tuple[int, float] = (0, 0.0)
        """A claimed incarnation, and the time at which its claim, or its claimant's end, was seen
        first."""
        self._heard: dict[str, float] = {}
        """Time of each Gym server's last answer, or of the first question to it."""
        record = restarter.stack.record()
        self._stack_id = record.stack_id if record is not None else None

    def on_new_life(self, at: float) -> None:
        """The job came to life at this instant of the monotonic clock."""
        self._alive_since = self._answered_at = self._reached_at = at

    def newest_claim_failed(self) -> None:
        """The supervisor's own recovery claimed the newest incarnation, and failed."""
        self._claim_seen = (self._newest(), -math.inf)

    async def observe(
        self, gym: GymClient, incarnation: int, *, recovering: bool, starting: Collection[str]
    ) -> Observation:
        """The state of everything now.

        Args:
            gym: Client of the Gym servers.
            incarnation: The supervised one.
            recovering: Whether the job is being brought back.
            starting: Processes that are being started: their absence is no news.
        """
        await self._follow_the_stack()
        answering = await self._answering(gym)
        job = self._newest_look(recovering)
        # After the looks: what a claim has ended must not be seen without the claim.
        newest = await asyncio.to_thread(self._newest)
        driven = newest > incarnation and not recovering and await self._is_driven(newest, job)
        now = time.monotonic()
        stack = self._restarter.stack
        record = stack.record()
        # Last, and nothing is awaited from here to the decision: what is being started is busy.
        gone = stack.gone() if record is not None and not self._restarter.busy else set()
        return Observation(
            incarnation=incarnation,
            newest=newest,
            job=job,
            gone=frozenset(gone.difference(starting)),
            owned=frozenset(p.name for p in record.processes) if record else frozenset(),
            gym=gym_servers.started(self.settings.servers),
            answering=answering,
            unheard_s={
                server.name: now - self._heard[server.name]
                for server in self.settings.servers
                if not server.command
            },
            silent_s=now - self._answered_at,
            unreachable_s=now - self._reached_at,
            stopped=record.stopped if record is not None else False,
            claim_driven=driven,
            recovering=recovering,
        )

    def _newest_look(self, recovering: bool) -> ClusterView | None:
        """The newest look into Ray, if it began after the job came to life."""
        look = self._watch.seen
        if recovering:  # what is being started does not answer yet
            self._reached_at = self._answered_at = time.monotonic()
        if look is None or look.at < self._alive_since:
            return None
        if look.reachable:
            self._reached_at = max(self._reached_at, look.at)
            if not look.silent:
                self._answered_at = max(self._answered_at, look.at)
        return look

    async def _follow_the_stack(self) -> None:
        """Take the new settings if another command has started the stack again."""
        record = self._restarter.stack.record()
        if record is None or record.stack_id == self._stack_id:
            return
        self._stack_id = record.stack_id
        self.settings = load_settings(
            state_dir=self.settings.state_dir, job_id=self.settings.job_id
        )
        self._restarter.use(self.settings)
        await self._watch.again(self.settings)

    async def _answering(self, gym: GymClient) -> dict[str, str]:
        """Instance id of each Gym server that answers; the others may live all the same."""
        servers = self.settings.servers
        answers = await asyncio.gather(
            *(
                asyncio.wait_for(gym.capabilities(server.url, server.name), ANSWER_TIMEOUT_S)
                for server in servers
            ),
            return_exceptions=True,
        )
        now, found = time.monotonic(), {}
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, Capabilities):
                found[server.name] = answer.instance_id
            elif not isinstance(answer, TurnpointError | TimeoutError):
                raise answer
            # An unmodified server has no such route: that is an answer too.
            if not isinstance(answer, ServerUnreachable | TimeoutError):
                self._heard[server.name] = now
            self._heard.setdefault(server.name, now)
        return found

    def _newest(self) -> int:
        return incarnations.newest(self.settings.job_config().job_folder)

    async def _is_driven(self, newest: int, look: ClusterView | None) -> bool:
        """True while the claimant of the newest incarnation still works on it.

        A claimant that has just ended may have brought the job to life after the newest look
        into Ray began: the next look tells.
        """
        if await self._is_worked_on(newest):
            return True
        if self._claim_left[0] != newest:
            self._claim_left = (newest, time.monotonic())
        return look is None or look.at < self._claim_left[1]

    async def _is_worked_on(self, newest: int) -> bool:
        if self._claim_seen[0] != newest:
            self._claim_seen = (newest, time.monotonic())
        waited_s = time.monotonic() - self._claim_seen[1]
        owner = incarnations.owner(self.settings.job_config().job_folder, newest)
        workflow_id, run_id = owner.get("workflow_id"), owner.get("run_id")
        if isinstance(workflow_id, str) and isinstance(run_id, str):
            try:
                return await is_running(await connect(self.settings), workflow_id, run_id)
            except WorkerRoomError:
                return True  # Temporal does not answer: it is started again first
        return waited_s < CLAIM_TIMEOUT_S
