"""One life of a job in this process: everything real but Ray, TransferQueue and the network.

Workflows, activities, actors, the Gym servers, the generation endpoint, the scripted policy and
the snapshot folder are the product's; rows lie in dictionaries, requests go by function call.
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
from tests.twin.mishaps import App, Mishaps
from tests.twin.moments import Dead
from tests.twin.process import Process
from tests.twin.ray_here import ClusterHere, ControllerHere, EndpointHere, HostHere, NemoGymHere
from tests.twin.rows_here import RowsHere

TOKEN = SecretStr("twin-control-token")
URLS = {name: f"http://{name}" for name in KINDS}
"""Names of servers are hosts here."""
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


class Life:
    """The job's processes from a start of the machine to its crash.

    Args:
        config: The job's.
        script: What the policy plays.
        expect_restore: Whether the Gym servers await a restore.
        dead: When it ends.
        mishaps: What goes wrong besides.
        network: Between its servers.
    """

    def __init__(
        self,
        config: JobConfig,
        script: scripted_policy.Script,
        *,
        expect_restore: bool,
        dead: Dead,
        mishaps: Mishaps,
        network: Network,
    ) -> None:
        """Servers are there; nothing has joined."""
        self.dead, self.mishaps = dead, mishaps
        self.process = Process()
        self.rows = RowsHere(dead.moment)
        self.cluster = ClusterHere(dead.moment)
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
        """The job's; None: it was not started."""
        actor: ControllerHere | None = self.cluster.actors.get(SINGLE_CONTROLLER)
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
        """As `rl.data_plane.host` has it."""
        self.cluster.actors[DATA_PLANE_HOST] = HostHere(config.job_id, incarnation, self.rows)

    def generation_actor(self, config: JobConfig, incarnation: int) -> None:
        """As `rl.generation.actor` has it; it serves from the network."""
        generation = Generation(
            self.rows,
            incarnation=incarnation,
            policy_url=config.policy_url,
            policy_model=config.policy_model,
            weight_version="v0",
            transport=self._network,
        )
        self.apps["generation"] = create_generation_app(generation)
        self.cluster.actors[GENERATION] = EndpointHere(incarnation)

    def nemo_gym(self, config: JobConfig, incarnation: int, servers: list[JoinedServer]) -> None:
        """As `rl.nemo_gym.actor` has it."""
        fleet = Fleet(self._client, servers, incarnation)
        self.cluster.actors[NEMO_GYM] = NemoGymHere(fleet, incarnation)

    def single_controller(
        self, config: JobConfig, incarnation: int, servers: list[JoinedServer]
    ) -> None:
        """As `rl.controller.actor` has it."""
        self.cluster.actors[SINGLE_CONTROLLER] = ControllerHere(config, incarnation, servers)


class Lives:
    """The one life that there is, for those who outlive it: Temporal's worker and the network."""

    def __init__(self) -> None:
        """None yet."""
        self.now: Life | None = None

    @property
    def life(self) -> Life:
        """The one there is."""
        assert self.now is not None, "nobody lives"
        return self.now

    @property
    def cluster(self) -> ClusterHere:
        """Its actors."""
        return self.life.cluster

    @property
    def rows(self) -> RowsHere:
        """Its rows."""
        return self.life.rows

    def make(self, what: str, *given: Any) -> None:
        """Make one of its actors."""
        getattr(self.life, what)(*given)


class Network(httpx.AsyncBaseTransport):
    """Requests to applications by host name, each handled in a task of its own."""

    def __init__(self, lives: Lives) -> None:
        """They are handled in the life there is."""
        self._lives = lives

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As over a socket: a caller that leaves ends nothing."""
        life = self._lives.life
        what = f"{request.method} {request.url.host}{request.url.path}"
        await life.dead.moment(f"{what} asked")
        app = httpx.ASGITransport(life.apps[request.url.host])
        answer = await asyncio.shield(asyncio.create_task(app.handle_async_request(request)))
        await life.dead.moment(f"{what} answered")
        return answer
