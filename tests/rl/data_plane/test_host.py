"""The data plane on a real Ray cluster: rows survive kill and reload, damage is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
import transfer_queue as tq
from ray.exceptions import RayTaskError

from gym.protocol import (
    DigestMismatch,
    FolderOutsideRoot,
    Identity,
    StaleIncarnation,
    TurnpointError,
)
from rl.config import JobConfig
from rl.data_plane.host import data_plane_host
from rl.data_plane.names import (
    CONTROLLER_ACTOR,
    CONTROLLER_NAMESPACE,
    STAGING,
    STORAGE_ACTOR,
    TRAINING,
)
from rl.data_plane.rows import StagingRow, assemble
from rl.data_plane.transfer_queue import DataPlane
from rl.generation.actor import generation_actor
from rl.messages import DATA_PLANE_HOST, RAY_NAMESPACE
from tests.ports import free_port
from tests.rl.ray_cluster import REPO, leave_transfer_queue, ray_cluster

KEY = "1/p0_g0/call-0"
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
REQUEST = "0" * 64


def job_config(root: Path, **more: object) -> JobConfig:
    return JobConfig(
        job_id="job",
        snapshot_root=root,
        control_token_file=root / "token",
        servers=[],
        policy_url="http://127.0.0.1:23999/v1",
        policy_model="policy",
        generation_port=23_998,
        storage_units=2,
        **more,
    )


def staging_row(number: int, length: int = 64) -> StagingRow:
    return StagingRow(
        prompt_ids=list(range(number, number + length)),
        generation_ids=list(range(length)),
        log_probs=[-0.1 * k for k in range(length)],
        response=b'{"id": "%d"}' % number,
        request_sha256=REQUEST,
        weight_version="v1",
        parent_key=None if number == 0 else f"1/p0_g0/call-{number - 1}",
    )


@pytest.mark.long  # `tests.real.test_story` meets the same with a whole job.
async def test_rows_survive_the_death_of_the_cluster(tmp_path: Path) -> None:
    config = job_config(tmp_path)
    folder = config.job_folder / "tmp_snapshot_000001-abc"
    folder.mkdir(parents=True)
    staged = {f"1/p0_g0/call-{k}": staging_row(k) for k in range(1000)}
    trained = assemble([staging_row(0), staging_row(1)], 1.0, b'{"reward": 1.0}')
    failed = assemble([], None, b"{}")

    with ray_cluster():
        host = data_plane_host(config, 1)
        await host.ping.remote(1)
        plane = await DataPlane.attach()
        assert await plane.get_staging(["1/unknown/call-0"]) == {}
        for key, row in staged.items():
            await plane.put_staging(key, row)
        await plane.put_training("p0_g0", trained, {"group": "p0"})
        await plane.put_training("p1_g0", failed, {"group": "p1"})
        files = await host.save.remote(1, str(folder))
        with pytest.raises(StaleIncarnation):
            await host.save.remote(2, str(folder))
        with pytest.raises(FolderOutsideRoot):
            await host.save.remote(1, str(tmp_path))

    assert {file.path for file in files} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    # Three int or float columns of 64 numbers are 768 bytes; a dense batch would be 769 kB a row.
    assert sum(file.bytes for file in files) < 1000 * 2_500

    with ray_cluster():
        host = data_plane_host(config, 2)
        assert await host.load.remote(2, str(folder), files) == 1002
        assert await host.load.remote(2, str(folder), files) == 1002
        plane = await DataPlane.attach()
        assert await plane.get_staging(staged) == staged
        assert await plane.get_training(["p0_g0", "p1_g0", "p2_g0"]) == {
            "p0_g0": (trained, {"group": "p0"}),
            "p1_g0": (failed, {"group": "p1"}),
        }
        await plane.clear(STAGING, ["1/p0_g0/call-0", "1/unknown/call-0"])
        assert await plane.keys(STAGING) == staged.keys() - {"1/p0_g0/call-0"}
        await plane.put_staging("2/p0_g0-a1/call-0", staging_row(0))
        assert await plane.keys(TRAINING) == {"p0_g0", "p1_g0"}


async def killed(*handles: Any) -> None:
    """Kill actors and wait until TransferQueue's and their names are free."""
    for handle in handles:
        ray.kill(handle)
    names = [(CONTROLLER_ACTOR, CONTROLLER_NAMESPACE), (DATA_PLANE_HOST, RAY_NAMESPACE)]
    names += [(STORAGE_ACTOR.format(unit), RAY_NAMESPACE) for unit in range(2)]
    deadline = time.monotonic() + 20
    while any(_is_there(*name) for name in names):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def _is_there(name: str, namespace: str) -> bool:
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return False
    return True


async def refusal(call: Any) -> TurnpointError:
    with pytest.raises(RayTaskError) as caught:
        await call
    assert isinstance(caught.value.cause, TurnpointError)
    return caught.value.cause


async def test_damage_is_refused_and_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    config = job_config(tmp_path)
    folder = config.job_folder / "tmp_snapshot_000001-abc"
    (folder / "data_plane").mkdir(parents=True)  # as the snapshot folder reserves it
    with ray_cluster():
        host = data_plane_host(config, 1)
        await host.ping.remote(1)
        plane = await DataPlane.attach()
        await plane.put_staging(KEY, staging_row(0))

        # A key that was registered and never written (a put that a save or a crash overtook).
        client = tq.get_client()
        await client.async_kv_retrieve_meta(keys=["ghost"], partition_id=STAGING, create=True)
        assert await plane.get_staging([KEY, "ghost"]) == {KEY: staging_row(0)}
        assert await plane.keys(STAGING) == {KEY, "ghost"}
        await plane.clear(STAGING, ["ghost"])
        assert await plane.keys(STAGING) == {KEY}

        # A row that lies under another key than it was stored under is found by its digest.
        lost = await client.async_kv_retrieve_meta(keys=[KEY], partition_id=STAGING)
        data = await client.async_get_data(lost)
        await tq.async_kv_batch_put(keys=["other"], partition_id=STAGING, fields=data, tags=[{}])
        with pytest.raises(DigestMismatch) as mismatch:
            await plane.get_staging(["other"])
        assert mismatch.value.details == {"key": "other"}
        await plane.clear(STAGING, ["other"])

        saved = await host.save.remote(1, str(folder))
        assert await host.save.remote(1, str(folder)) != []  # replaces the first
        files = await host.save.remote(1, str(folder))
        assert {file.path for file in files} == {file.path for file in saved}
        assert (await refusal(host.load.remote(1, str(folder), files))).code == "invalid_phase"
        gone = config.job_folder / "tmp_snapshot_000009-abc"
        assert (await refusal(host.save.remote(1, str(gone)))).code == "unpublished"
        assert not gone.exists()

        leave_transfer_queue()
        await killed(host)
        host = data_plane_host(config, 2)
        for file in files:
            path = folder / file.path
            whole = path.read_bytes()
            for damaged in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
                path.write_bytes(damaged)
                error = await refusal(host.load.remote(2, str(folder), files))
                assert (error.code, error.details) == ("digest_mismatch", {"file": file.path})
            path.unlink()
            error = await refusal(host.load.remote(2, str(folder), files))
            assert (error.code, error.details) == ("digest_mismatch", {"file": file.path})
            path.write_bytes(whole)
        extra = folder / "data_plane" / "more.pkl"
        extra.write_bytes(b"")
        error = await refusal(host.load.remote(2, str(folder), files))
        assert error.details == {"file": "data_plane/more.pkl"}
        extra.unlink()
        assert (await refusal(host.load.remote(2, str(folder), []))).code == "digest_mismatch"
        plane = await DataPlane.attach()
        assert await plane.keys(STAGING) == set()
        # After all those refusals the intact files still load, since nothing had been touched.
        assert await host.load.remote(2, str(folder), files) == 1
        assert await plane.get_staging([KEY]) == {KEY: staging_row(0)}


async def test_the_endpoint_answers_from_the_row_after_its_death(tmp_path: Path) -> None:
    identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0, model_call_id="call-0")
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    with ray_cluster(), scripted_policy() as (policy, policy_url):
        port = free_port()
        config = job_config(tmp_path).model_copy(
            update={"policy_url": policy_url, "generation_port": port}
        )
        host = data_plane_host(config, 1)
        endpoint = generation_actor(config, 1)
        url = await endpoint.ready.remote(1)
        assert (await refusal(endpoint.ready.remote(2))).code == "stale_incarnation"
        async with httpx.AsyncClient(timeout=60) as http:
            post = partial(
                http.post, f"{url}/chat/completions", json=chat, headers=identity.headers()
            )
            first = await post()
            assert first.status_code == 200, first.text
            policy.kill()  # from here on only the row can answer
            kill_listener(port)
            async with asyncio.timeout(60):
                while True:
                    try:
                        again = await post()
                    except httpx.TransportError:
                        await asyncio.sleep(0.1)
                    else:
                        break
            assert again.content == first.content
            other = await http.post(
                f"{url}/chat/completions", json=chat, headers=identity.call(1).headers()
            )
            assert (other.status_code, other.json()["code"]) == (503, "server_unreachable")
        await host.ping.remote(1)


@contextmanager
def scripted_policy() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    command = [sys.executable, "-m", "rl.policies.scripted", "--port", str(port), "--delay-s", "0"]
    with subprocess.Popen(command, cwd=REPO) as process:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield process, f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def kill_listener(port: int) -> None:
    """SIGKILL the process that listens on a loopback port."""
    for process in psutil.process_iter():
        try:
            listens = any(
                found.status == psutil.CONN_LISTEN and found.laddr.port == port
                for found in process.net_connections("tcp")
            )
        except psutil.Error:
            continue
        if listens:
            process.kill()
            return
    raise AssertionError(f"nothing listens on {port}")
