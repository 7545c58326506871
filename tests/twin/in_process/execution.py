"""One execution of a job in this process, from its start or restore to its crash or end.

Workflows, activities, actors, Gym servers, generation endpoint, scripted policy and snapshot folder
are the product's. Ray and TransferQueue are fakes; requests are function calls.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from gym.client import GymClient
from rl.config import JobConfig, SaveSettings, ServerConfig
from rl.controller.controller import Controller
from rl.generation.app import Generation
from rl.generation.app import create_app as create_generation_app
from rl.messages import DATA_PLANE_HOST, GENERATION, NEMO_GYM, SINGLE_CONTROLLER, JoinedServer
from rl.nemo_gym.fleet import Fleet
from rl.policies import scripted as scripted_policy
from tests.twin.fleet import KINDS, make
from tests.twin.in_process.crash_points import CrashPoint
from tests.twin.in_process.fake_data_plane import FakeDataPlane
from tests.twin.in_process.fake_process import FakeProcess
from tests.twin.in_process.fake_ray import (
    ControllerInProcess,
    FakeCluster,
    FakeDataPlaneHost,
    FakeGenerationServer,
    NemoGymInProcess,
)
from tests.twin.mishaps import App, Mishaps

TOKEN = SecretStr("twin-control-token")
URLS = {name: f"http://{name}" for name in KINDS}
"""The servers' names are the host names."""
BUDGET_S = 10.0
"""For each phase of a save."""


def job_config(root: Path) -> JobConfig:
    """Configuration of a job below `root`."""
    return JobConfig(
        job_id="job",
        snapshot_root=root,
        control_token_file=root / "token",
        servers=[
            ServerConfig(name=name, kind=kind, url=URLS[name]) for name, kind in KINDS.items()
        ],
        policy_url="http://policy/v1",
        policy_model="policy",
        generation_port=1,
        save=SaveSettings(
            lease_s=30,
            prepare_timeout_s=BUDGET_S,
            commit_timeout_s=BUDGET_S,
            cut_timeout_s=BUDGET_S,
            publish_timeout_s=BUDGET_S,
        ),
        restore_wait_s=5,
        max_runs=100,
    )


class Execution:
    """The job's servers and actors from one start of them to the crash that ends them.

    Args:
        config: The job's.
        script: What the policy plays.
        expect_restore: Whether the Gym servers await a restore.
        crash: Where it ends.
        mishaps: What else goes wrong.
        network: Between its servers.
    """

    def __init__(
        self,
        config: JobConfig,
        script: scripted_policy.Script,
        *,
        expect_restore: bool,
        crash: CrashPoint,
        mishaps: Mishaps,
        network: Network,
    ) -> None:
        self.crash, self.mishaps = crash, mishaps
        self.process = FakeProcess()
        self.rows = FakeDataPlane(crash.reach)
        self.cluster = FakeCluster(crash.reach)
        self.apps: dict[str, App] = {"policy": scripted_policy.create_app(script)}
        self._config, self._network = config, network
        self._client = GymClient(TOKEN, transport=network)
        for name, kind in KINDS.items():
            common = {
                "name": name,
                "port": 1,
                "snapshot_root": config.snapshot_root,
                "control_token": TOKEN,
                "expect_restore": expect_restore,
            }
            app = make(name, common, URLS, "http://generation/v1", transport=network)
            self.apps[name] = mishaps.around(app, kind)

    @property
    def controller(self) -> Controller | None:
        """The job's controller; None: it was not started."""
        actor: ControllerInProcess | None = self.cluster.actors.get(SINGLE_CONTROLLER)
        return actor.controller if actor is not None else None

    @property
    def running(self) -> Controller:
        """The controller of a job that was started."""
        assert self.controller is not None, "the job was not started"
        return self.controller

    def runs(self) -> dict[str, int]:
        """The newest run of each rollout."""
        records = self.running.job.ledger
        return {rollout: record.run.attempt_index for rollout, record in records.items()}

    # --- its actors -----------------------------------------------------------------------------

    def data_plane_host(self, config: JobConfig, incarnation: int) -> None:
        """Stands for `rl.data_plane.host.data_plane_host`."""
        self.cluster.actors[DATA_PLANE_HOST] = FakeDataPlaneHost(
            config.job_id, incarnation, self.rows
        )

    def generation_actor(self, config: JobConfig, incarnation: int) -> None:
        """Stands for `rl.generation.actor.generation_actor`; requests reach it by the network."""
        generation = Generation(
            self.rows,
            incarnation=incarnation,
            policy_url=config.policy_url,
            policy_model=config.policy_model,
            weight_version="v0",
            transport=self._network,
        )
        self.apps["generation"] = create_generation_app(generation)
        self.cluster.actors[GENERATION] = FakeGenerationServer(incarnation)

    def nemo_gym(self, config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> None:
        """Stands for `rl.nemo_gym.actor.nemo_gym`."""
        fleet = Fleet(self._client, servers, incarnation)
        self.cluster.actors[NEMO_GYM] = NemoGymInProcess(fleet, incarnation)

    def single_controller(
        self, config: JobConfig, incarnation: int, servers: list[JoinedServer]
    ) -> None:
        """Stands for `rl.controller.actor.single_controller`."""
        self.cluster.actors[SINGLE_CONTROLLER] = ControllerInProcess(config, incarnation, servers)


class CurrentExecution:
    """The execution that runs now, for those that outlive it: Temporal's worker and the network."""

    def __init__(self) -> None:
        self.now: Execution | None = None

    @property
    def execution(self) -> Execution:
        """The one that runs.

        Raises:
            AssertionError: None runs.
        """
        assert self.now is not None, "no execution runs"
        return self.now

    @property
    def cluster(self) -> FakeCluster:
        """Its actors."""
        return self.execution.cluster

    @property
    def rows(self) -> FakeDataPlane:
        """Its rows."""
        return self.execution.rows

    def make(self, what: str, *given: Any) -> None:
        """Make one of its actors."""
        getattr(self.execution, what)(*given)


class Network(httpx.AsyncBaseTransport):
    """Carries requests to the current execution's applications, by host name."""

    def __init__(self, current: CurrentExecution) -> None:
        self._current = current

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Handle it in a task of its own: a caller that leaves ends nothing, as over a socket."""
        execution = self._current.execution
        what = f"{request.method} {request.url.host}{request.url.path}"
        await execution.crash.reach(f"{what} asked")
        app = httpx.ASGITransport(execution.apps[request.url.host])
        answer = await asyncio.shield(asyncio.create_task(app.handle_async_request(request)))
        await execution.crash.reach(f"{what} answered")
        return answer
