"""The controller on real Ray and TransferQueue: a job is saved, killed whole, and restored.

NemoGym alone is a stand-in: it stages rows as the generation endpoint would, and answers a run
when the test says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import CheckpointConflict, StaleCheckpoint, StaleIncarnation
from rl import living_actors
from rl.actors import call
from rl.config import JobConfig, Workload
from rl.data_plane import read_training_rows
from rl.data_plane.host import data_plane_host
from rl.data_plane.names import STAGING, TRAINING
from rl.data_plane.transfer_queue import DataPlane
from rl.errors import ControllerLost, OtherJob, Superseded
from rl.job import (
    alive,
    alive_here,
    start_fresh,
    start_single_controller,
)
from rl.messages import DATA_PLANE_HOST, NEMO_GYM, SINGLE_CONTROLLER
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger
from rl.snapshots import incarnations
from tests.rl import ray_cluster as cluster
from tests.rl.fakes import config, dataset, servers

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
SAVE, RESTORE = "aaaaaaaa-1", "restore-1"


def scripted_gym(incarnation: int, restored: dict[str, int]) -> Any:
    """Start a stand-in for NemoGym. Its class is local, so it is pickled whole, not by name.

    Args:
        incarnation: The one it serves.
        restored: Calls that each restored rollout has behind it.
    """

    class ScriptedGym:
        def __init__(self, incarnation: int, restored: dict[str, int]) -> None:
            self.incarnation = incarnation
            self.calls = dict(restored)
            self.keys = {
                name: [f"1/{name}/call-{k}" for k in range(n)] for name, n in restored.items()
            }
            self.sent: list[tuple[str, int]] = []
            self.acknowledged: list[str] = []
            self.released: dict[str, asyncio.Event] = {}
            self.plane: Any = None
            self.attaching = asyncio.Lock()

        async def _stage(self, rollout_id: str, attempt: int) -> None:
            from rl.data_plane.rows import StagingRow
            from rl.data_plane.transfer_queue import DataPlane

            async with self.attaching:  # runs come together; TransferQueue refuses two attaches
                if self.plane is None:
                    self.plane = await DataPlane.attach()
            number = self.calls.get(rollout_id, 0)
            suffix = f"-a{attempt}" if attempt else ""
            key = f"{self.incarnation}/{rollout_id}{suffix}/call-{number}"
            row = StagingRow([number], [number + 1], [-0.5], b"{}", "0" * 64, "v0")
            await self.plane.put_staging(key, row)
            self.calls[rollout_id] = number + 1
            self.keys.setdefault(rollout_id, []).append(key)

        async def run(self, incarnation: int, request: Any) -> Any:
            from gym.protocol import LedgerRow, canonical_json, digest_of
            from rl.messages import RunResult

            name, attempt = request.rollout_id, request.attempt_index
            self.sent.append((name, attempt))
            if self.calls.get(name, 0) == 0:
                await self._stage(name, attempt)
            await self.released.setdefault(name, asyncio.Event()).wait()
            while self.calls[name] < 3:
                await self._stage(name, attempt)
            rows = await self.plane.get_staging(self.keys[name])
            body = {"reward": 1.0}
            return RunResult(
                rollout_id=name,
                attempt_index=attempt,
                agent=request.agent,
                reward=1.0,
                result_digest=digest_of(body),
                result=canonical_json(body),
                records=[
                    LedgerRow(
                        rollout_id=name,
                        attempt_index=attempt,
                        capture_key=key.split("/")[1],
                        incarnation=self.incarnation,
                        model_call_id=f"call-{n}",
                        parent_model_call_id=f"call-{n - 1}" if n else None,
                        request_sha256="0" * 64,
                        coordinates=rows[key].coordinates(key),
                    )
                    for n, key in enumerate(self.keys[name])
                ],
                resource_revisions={},
            )

        async def release(self, *names: str) -> None:
            for name in names:
                self.released.setdefault(name, asyncio.Event()).set()

        async def acknowledge(self, *args: Any) -> None:
            self.acknowledged.append(args[1])

        async def seen(self) -> tuple[list[tuple[str, int]], list[str], int]:
            return self.sent, self.acknowledged, os.getpid()

        async def status(self, incarnation: int) -> list[Any]:
            from gym.protocol import Counts, Phase, Status

            return [
                Status(
                    server=name,
                    instance_id="i",
                    incarnation=incarnation,
                    phase=Phase.OPEN,
                    checkpoint_id=None,
                    lease_left_s=None,
                    counts=Counts(),
                    blockers=[],
                    blocker_count=0,
                )
                for name in ("policy_model", "simple_agent", "counter")
            ]

        async def inventory(self, incarnation: int, checkpoint_id: str, attempt: int = 0) -> Any:
            from gym.protocol import Continuation, StorageReference
            from rl.messages import Inventory

            held = {n: c for n, c in self.calls.items() if n not in self.acknowledged}
            return Inventory(
                continuations={
                    "simple_agent": [
                        Continuation(
                            rollout_id=name,
                            attempt_index=attempt,
                            capture_key=name,
                            last_committed_model_call_id=f"call-{calls - 1}",
                            resource_state_revisions={},
                        )
                        for name, calls in held.items()
                    ]
                },
                sessions={},
                storage={
                    "policy_model": [
                        StorageReference(rollout_id=name, model_call_id=f"call-{n}", key=key)
                        for name in held
                        for n, key in enumerate(self.keys[name])
                    ]
                },
                line_counts={"simple_agent": len(held)},
            )

        async def restored_inventory(self, incarnation: int, restore_id: str) -> Any:
            return await self.inventory(incarnation, restore_id, 1)

        async def confirm_held(self, incarnation: int, checkpoint_id: str) -> list[Any]:
            return []

        async def discard(self, *args: Any) -> None: ...

    return (
        ray.remote(ScriptedGym)
        .options(name=NEMO_GYM, lifetime="detached", num_cpus=0, max_restarts=-1)
        .remote(incarnation, restored)
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster.ray_cluster() as found:
        os.environ["RAY_ADDRESS"] = found
        yield found


async def _up(settings: JobConfig, incarnation: int, restored: dict[str, int]) -> Any:
    await asyncio.to_thread(data_plane_host, settings, incarnation)
    await call(DATA_PLANE_HOST, "ping", incarnation)
    gym = await asyncio.to_thread(scripted_gym, incarnation, restored)
    await start_single_controller(settings, incarnation, servers())
    await start_single_controller(settings, incarnation, servers())  # repeatable
    return gym


async def _until(reached: Any) -> None:
    async with asyncio.timeout(40):
        while not await reached():  # noqa: ASYNC110  # asks another process
            await asyncio.sleep(0.05)


async def _count(gym: Any, what: int) -> int:
    return len((await gym.seen.remote())[what])


@pytest.mark.long  # `tests.real.test_story` meets the same with real servers.
async def test_a_job_is_saved_killed_and_restored(address: str, tmp_path: Path) -> None:
    settings = config(tmp_path, data_plane_timeout_s=20)
    workload = Workload(dataset=dataset(tmp_path, 2), generations=2)
    assert await alive(settings) is None
    incarnations.claim(settings.job_folder, {"run_id": "one"})
    gym = await _up(settings, 1, {})

    # not started: refused, but for status
    with pytest.raises(ControllerLost):
        await call(SINGLE_CONTROLLER, "begin_checkpoint", settings.job_id, SAVE, None)
    with pytest.raises(ControllerLost):
        await call(SINGLE_CONTROLLER, "renew", 1, SAVE, 5.0)
    status = await alive(settings)
    assert status is not None and status.state == "starting"

    await call(SINGLE_CONTROLLER, "start_fresh", 1, workload)
    with pytest.raises(StaleIncarnation):
        await call(SINGLE_CONTROLLER, "start_pumps", 2)
    assert await call(SINGLE_CONTROLLER, "start_pumps", 1) == 0
    await _until(lambda: _sent(gym, 4))

    # NemoGym dies and comes back: the same runs are sent again under the same numbers
    _, _, pid = await gym.seen.remote()
    os.kill(pid, signal.SIGKILL)
    await _until(lambda: _back(pid))
    await _until(lambda: _sent(gym, 4))
    sent, _, _ = await gym.seen.remote()
    assert sorted(sent) == [(f"p{k}_g{j}", 0) for k in range(2) for j in range(2)]

    await gym.release.remote("p0_g0")
    await _until(lambda: _acknowledged(gym, 1))

    # a second job on this cluster is refused, and nothing is touched
    other = settings.model_copy(update={"job_id": "other"})
    with pytest.raises(OtherJob, match="other"):
        await call(SINGLE_CONTROLLER, "begin_checkpoint", "other", SAVE, None)
    with pytest.raises(OtherJob, match="one holds one job"):
        await alive_here(other)
    async with GymClient(SecretStr("t" * 40)) as client:
        with pytest.raises(OtherJob):
            owner = {"run_id": "x"}
            await start_fresh(other, workload, owner, client, replace=True)
    assert not other.job_folder.exists()
    assert (await alive_here(settings)) == await alive(settings)

    # the save
    begun = await call(SINGLE_CONTROLLER, "begin_checkpoint", settings.job_id, SAVE, None)
    assert begun.agreed, begun
    await call(SINGLE_CONTROLLER, "close_admission", 1, SAVE, 5.0)
    assert await call(SINGLE_CONTROLLER, "renew", 1, SAVE, 30.0)
    cut = await call(SINGLE_CONTROLLER, "cut_rl_state", 1, SAVE, begun.folder, 30.0)
    assert (cut.finished, cut.unfinished) == (1, 3)
    with pytest.raises(CheckpointConflict):
        await call(SINGLE_CONTROLLER, "close_admission", 1, "another", 1.0)
    pause_s = await call(SINGLE_CONTROLLER, "resume_checkpoint", 1, SAVE, None)
    assert 0 < pause_s < 30
    with pytest.raises(StaleCheckpoint):
        await call(SINGLE_CONTROLLER, "close_admission", 1, SAVE, 1.0)
    # unpublished: the controller has renamed it to trash; the test takes it from there
    (trash,) = settings.job_folder.glob("trash_*")
    folder = trash.rename(settings.job_folder / "snapshot_000001")
    ledger = RecoveryLedger.decode((folder / LEDGER_FILE).read_bytes())
    assert ledger["p0_g0"].finished and ledger["p1_g1"].staging_keys == ["1/p1_g1/call-0"]

    # its rows are another job's business, too, once its controller is dead
    await living_actors.kill(
        [a for a in await living_actors.find_all() if a.name == SINGLE_CONTROLLER]
    )
    with pytest.raises(OtherJob):
        await alive_here(other)
    assert await alive_here(settings) is None

    # everything is killed; the rest of the turn is lost with it
    assert sorted(await living_actors.kill())[:2] == [DATA_PLANE_HOST, NEMO_GYM]
    assert await living_actors.kill() == []
    assert await alive(settings) is None
    cluster_forget()

    # the restore
    incarnations.claim(settings.job_folder, {"run_id": "two"})
    gym = await _up(settings, 2, {"p0_g1": 1, "p1_g0": 1, "p1_g1": 1})
    rows = await call(DATA_PLANE_HOST, "load", 2, str(folder), cut.files)
    assert rows == 1 + 3 + 3
    start = await call(SINGLE_CONTROLLER, "start_restored", 2, RESTORE, str(folder), cut.files)
    assert {r.rollout_id: r.attempt_index for r in start.unfinished} == {
        "p0_g1": 1,
        "p1_g0": 1,
        "p1_g1": 1,
    }
    assert await call(SINGLE_CONTROLLER, "discard_continuations", 2, RESTORE) == []
    assert await call(SINGLE_CONTROLLER, "start_pumps", 2) == 3
    await gym.release.remote("p0_g1", "p1_g0", "p1_g1")
    await _until(lambda: _finished(settings))
    status = await call(SINGLE_CONTROLLER, "status")
    assert (status.finished, status.failed, status.running) == (4, 0, 0)

    plane = await DataPlane.attach()
    names = [f"p{k}_g{j}" for k in range(2) for j in range(2)]
    trained = await plane.get_training(names)
    assert sorted(trained) == names
    assert await plane.keys(TRAINING) == set(names)
    assert all(row.token_ids == [0, 1, 1, 2, 2, 3] for row, _ in trained.values())
    assert trained["p1_g1"][1]["capture_keys"] == ["p1_g1", "p1_g1-a1"]
    read = [row async for row in read_training_rows(batch_rows=3)]
    assert [row.rollout_id for row in read] == names
    assert all(row.token_ids.tolist() == [0, 1, 1, 2, 2, 3] for row in read)
    assert {(row.reward, row.verify_answer["reward"]) for row in read} == {(1.0, 1.0)}
    assert read[3].attempt_index == 1 and read[3].tag == trained["p1_g1"][1]
    assert "1/p1_g1/call-0" in await plane.keys(STAGING)
    await living_actors.kill()
    cluster_forget()


def cluster_forget() -> None:
    """This driver's TransferQueue client belongs to the killed one."""
    cluster.leave_transfer_queue()


async def _sent(gym: Any, count: int) -> bool:
    return await _count(gym, 0) == count


async def _acknowledged(gym: Any, count: int) -> bool:
    return await _count(gym, 1) == count


async def _back(old_pid: int) -> bool:
    try:
        handle = ray.get_actor(NEMO_GYM)
        return (await handle.seen.remote())[2] != old_pid
    except (ray.exceptions.RayActorError, ValueError):
        return False


async def _finished(settings: JobConfig) -> bool:
    status = await alive(settings)
    assert status is not None and status.state != "failed", status
    return status.state == "finished"


async def test_actors_of_a_superseded_restore_give_way_to_the_newest_incarnation(
    address: str, tmp_path: Path
) -> None:
    """Its own check may have passed just before the claim, and its actors have started after.

    Break: rl/job.py: let the `StaleIncarnation` of the actor that is there reach the caller.
    """
    await living_actors.kill()
    settings = config(tmp_path)
    for incarnation, owner in ((1, "one"), (2, "two")):
        incarnations.claim(settings.job_folder, {"run_id": owner})
        await start_single_controller(settings, incarnation, servers())
        assert await call(SINGLE_CONTROLLER, "servers", incarnation) == servers()
    with pytest.raises(Superseded):
        await start_single_controller(settings, 1, servers())
    assert await call(SINGLE_CONTROLLER, "servers", 2) == servers()
    await living_actors.kill()
