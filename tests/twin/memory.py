"""One life of a job in this process: everything real but Ray, TransferQueue and the network.

Controller, NemoGym's desk, the three Gym servers, the generation endpoint, the scripted policy and
the snapshot folder are the product's; rows lie in dictionaries, requests go by function call.

Guarantees: a life that was killed has no effect any more: its tasks end, its rows are gone, and
what its tasks would still ask of a server or of the rows is never answered.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import SecretStr

from gym.client import GymClient
from gym.durable import digest_of_file, write_durably
from gym.protocol import WrittenFile
from rl import scripted_policy
from rl.collaborators import STAGING, TRAINING, Collaborators
from rl.controller import Controller
from rl.fleet import Fleet
from rl.generation_app import Generation
from rl.generation_app import create_app as create_generation_app
from rl.gym_desk import GymDesk
from rl.joining import discover_and_join
from rl.messages import (
    Inventory,
    JobConfig,
    RunRequest,
    RunResult,
    SaveSettings,
    ServerConfig,
    ServerReport,
)
from rl.snapshot_folder import SnapshotFolder
from rl.training_rows import StagingRow, TrainingRow
from tests.twin.fleet import KINDS, make
from tests.twin.mishaps import App, Mishaps

T = TypeVar("T")
TOKEN = SecretStr("twin-control-token")
URLS = {name: f"http://{name}" for name in KINDS}
"""Names of servers are hosts here."""
ROWS_FILE = "data_plane/rows.bin"

Moment = Callable[[str], Awaitable[None]]
"""Awaited before and after everything that a crash may come between; told what it is."""


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
        save=SaveSettings(lease_s=30),
        restore_wait_s=5,
        max_runs=100,
    )


class Network(httpx.AsyncBaseTransport):
    """Requests to applications by host name, each handled in a task of its own."""

    def __init__(self, moment: Moment) -> None:
        """Nobody answers yet."""
        self.apps: dict[str, App] = {}
        self._moment = moment
        self._handling: set[asyncio.Task[httpx.Response]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As over a socket: a caller that leaves ends nothing."""
        what = f"{request.method} {request.url.host}{request.url.path}"
        await self._moment(f"{what} asked")
        app = httpx.ASGITransport(self.apps[request.url.host])
        task = asyncio.create_task(app.handle_async_request(request))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        answer = await asyncio.shield(task)
        await self._moment(f"{what} answered")
        return answer


class MemoryRows:
    """TransferQueue's two partitions, and its host."""

    def __init__(self, moment: Moment) -> None:
        """Empty."""
        self.rows: dict[str, dict[str, Any]] = {STAGING: {}, TRAINING: {}}
        self.tags: dict[str, dict[str, Any]] = {}
        self.claimed: set[str] = set()
        """Training rows that a consumer has fetched; saved and loaded with the rows."""
        self._moment = moment

    async def put_staging(self, key: str, row: StagingRow) -> None:
        await self._moment("put_staging begins")
        assert key not in self.rows[STAGING], f"{key} is staged twice"
        self.rows[STAGING][key] = row
        await self._moment("put_staging ends")

    async def get_staging(self, keys: Iterable[str]) -> dict[str, StagingRow]:
        staged = self.rows[STAGING]
        return {key: staged[key] for key in keys if key in staged}

    async def put_training(self, rollout_id: str, row: TrainingRow, tag: dict[str, Any]) -> None:
        await self._moment("put_training begins")
        assert rollout_id not in self.rows[TRAINING], f"{rollout_id} has a row already"
        self.rows[TRAINING][rollout_id], self.tags[rollout_id] = row, tag
        await self._moment("put_training ends")

    async def keys(self, partition: str) -> set[str]:
        await self._moment(f"keys of {partition}")
        return set(self.rows[partition])

    async def clear(self, partition: str, keys: Iterable[str]) -> None:
        await self._moment(f"clear {partition} begins")
        for key in list(keys):
            self.rows[partition].pop(key, None)
        await self._moment(f"clear {partition} ends")

    async def reset_claims(self, partition: str) -> None:
        await self._moment("reset_claims")
        self.claimed.clear()

    async def claim(self, wanted: Callable[[set[str]], set[str]]) -> list[str]:
        """Fetch what no consumer has fetched: those of it that `wanted` answers."""
        await self._moment("claim begins")
        found = wanted(set(self.rows[TRAINING]) - self.claimed)
        self.claimed |= found
        await self._moment("claim ends")
        return sorted(found)

    async def save(self, folder: str) -> list[WrittenFile]:
        await self._moment("save of rows begins")
        path = Path(folder) / ROWS_FILE
        path.parent.mkdir(exist_ok=True)
        write_durably(path, pickle.dumps((self.rows, self.tags, self.claimed)))
        size, sha256 = digest_of_file(path)
        await self._moment("save of rows ends")
        return [WrittenFile(path=ROWS_FILE, bytes=size, sha256=sha256)]

    def load(self, folder: Path) -> None:
        self.rows, self.tags, self.claimed = pickle.loads((folder / ROWS_FILE).read_bytes())


class DirectGym:
    """NemoGym without the actor around it."""

    def __init__(self, desk: GymDesk) -> None:
        """Calls go to `desk`."""
        self._desk = desk

    async def run(self, request: RunRequest) -> RunResult:
        return await self._desk.runs.run(request)

    async def acknowledge(self, rollout_id: str, attempt: int, digest: str, agent: str) -> None:
        await self._desk.runs.acknowledge(rollout_id, attempt, digest, agent)

    async def let_go(self, rollout_id: str, agent: str) -> None:
        await self._desk.runs.let_go(rollout_id, agent)

    async def status(self) -> Any:
        return await self._desk.status()

    async def inventory(self, checkpoint_id: str) -> Inventory:
        return self._desk.inventory(checkpoint_id)

    async def confirm_held(self, checkpoint_id: str) -> list[ServerReport]:
        return await self._desk.confirm_held(checkpoint_id)

    async def restored_inventory(self, restore_id: str) -> Inventory:
        return self._desk.restored_inventory(restore_id)

    async def discard(self, restore_id: str, rollout_ids: list[str]) -> None:
        await self._desk.discard(restore_id, rollout_ids)


class Life:
    """The job's processes under one incarnation.

    Args:
        config: The job's.
        script: What the policy plays.
        expect_restore: Whether the Gym servers await a restore.
        moment: See `Moment`.
        mishaps: What goes wrong besides.
    """

    def __init__(
        self,
        config: JobConfig,
        script: scripted_policy.Script,
        *,
        expect_restore: bool,
        moment: Moment,
        mishaps: Mishaps,
    ) -> None:
        """Servers are there; nothing has joined."""
        self.config = config
        self.rows = MemoryRows(moment)
        self.network = Network(moment)
        self.client = GymClient(TOKEN, transport=self.network)
        self.network.apps = {"policy": scripted_policy.create_app(script)}
        for name, kind in KINDS.items():
            common = {
                "name": name,
                "port": 1,
                "snapshot_root": config.snapshot_root,
                "control_token": TOKEN,
                "expect_restore": expect_restore,
            }
            app = make(name, common, URLS, "http://generation/v1", transport=self.network)
            self.network.apps[name] = mishaps.around(app, kind)
        self.desk: GymDesk
        self.controller: Controller

    async def join(self, incarnation: int) -> None:
        """Join the servers, start the endpoint, the desk and the controller."""
        config = self.config
        servers = await discover_and_join(self.client, config, incarnation, config.restore_wait_s)
        generation = Generation(
            self.rows,
            incarnation=incarnation,
            policy_url=config.policy_url,
            policy_model=config.policy_model,
            weight_version="v0",
            transport=self.network,
        )
        self.network.apps["generation"] = create_generation_app(generation)
        self.desk = GymDesk(Fleet(self.client, servers, incarnation))
        self.controller = Controller(
            config,
            incarnation,
            servers,
            Collaborators(
                data_plane=self.rows,
                host=self.rows,
                gym=DirectGym(self.desk),
                folder=SnapshotFolder(config),
            ),
        )
        self.servers = servers
