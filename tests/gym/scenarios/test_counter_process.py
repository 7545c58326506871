"""The counter as a real process, driven by the real client: save, kill, restore, go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import (
    Capabilities,
    CommitRequest,
    Identity,
    JoinRequest,
    OtherServer,
    Phase,
    PrepareRequest,
    RenewRequest,
    RestoreRequest,
    ResumeRequest,
    ServerFault,
    ServerUnreachable,
    StaleCheckpoint,
    StaleInstance,
    StatusRequest,
    Unauthorized,
)
from gym.retry import retry_until
from tests.gym.parts import checkpoint_folder
from tests.ports import free_port

pytestmark = pytest.mark.real

ROW = {"initial_count": 3, "expected_count": 6, "responses_create_params": {"input": "add"}}
NAME = "counter"


class Running:
    """One counter process and its client."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, client: GymClient) -> None:
        self.process = process
        self.url = url
        self.client = client
        self.http = httpx.AsyncClient(base_url=url, trust_env=False)
        self.capabilities: Capabilities
        self.incarnation = 1

    @property
    def who(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "instance_id": self.capabilities.instance_id,
        }

    async def call(self, path: str, body: Any, place: str, *, run: int = 0) -> httpx.Response:
        identity = Identity(incarnation=self.incarnation, rollout_id="p0_g0", attempt=run)
        return await self.http.post(path, json=body, headers=identity.mutation(place).headers())

    def prepare(self, ckpt: str = "ck", lease_s: float = 30) -> PrepareRequest:
        return PrepareRequest(**self.who, checkpoint_id=ckpt, budget_s=5, lease_s=lease_s)

    async def phase(self) -> Phase:
        return (await self.client.status(self.url, NAME, StatusRequest(**self.who))).phase


@asynccontextmanager
async def counter(
    root: Path, port: int, *flags: str, incarnation: int = 1
) -> AsyncIterator[Running]:
    token = root / "token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text("s3cret")
    command = [
        sys.executable, "-m", "gym.environments.counter", "--name", NAME, "--port", str(port),
        "--snapshot_root", str(root), "--control_token_file", str(token), *flags,
    ]  # fmt: skip
    with (root / f"counter-{port}.log").open("ab") as log:
        process = await asyncio.to_thread(subprocess.Popen, command, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        async with GymClient(SecretStr("s3cret")) as client:
            running = Running(process, url, client)
            running.incarnation = incarnation
            deadline = asyncio.get_running_loop().time() + 20
            running.capabilities = await retry_until(
                deadline, lambda: client.capabilities(url, NAME)
            )
            await client.join(url, NAME, JoinRequest(job_id="job", incarnation=incarnation))
            async with running.http:
                yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        await asyncio.to_thread(process.wait, 10)


async def test_a_session_survives_the_death_of_its_process(tmp_path: Path) -> None:
    folder = checkpoint_folder(tmp_path)
    port = free_port()
    async with counter(tmp_path, port) as first:
        await first.call("/seed_session", ROW, "seed")
        await first.call("/increment_counter", {"count": 2}, "call-0")
        assert (await first.client.prepare(first.url, NAME, first.prepare())).ready
        committed = await first.client.commit(
            first.url,
            NAME,
            CommitRequest(**first.who, checkpoint_id="ck", budget_s=5, folder=str(folder)),
        )
        first.process.kill()
        await asyncio.to_thread(first.process.wait, 10)
        with pytest.raises(ServerUnreachable) as gone:
            await first.phase()
        assert gone.value.participant == NAME
    async with counter(tmp_path, port, "--expect-restore", "true", incarnation=2) as second:
        with pytest.raises(StaleInstance):
            await second.client.status(
                second.url,
                NAME,
                StatusRequest(incarnation=2, instance_id=first.capabilities.instance_id),
            )
        restored = await second.client.restore(
            second.url,
            NAME,
            RestoreRequest(
                **second.who,
                restore_id="rs",
                source_checkpoint_id="ck",
                folder=str(folder),
                files=committed.files,
            ),
        )
        assert [(entry.attempt_index, entry.revision) for entry in restored.sessions] == [(1, 2)]
        await second.client.resume(
            second.url, NAME, ResumeRequest(**second.who, checkpoint_id="rs")
        )
        await second.call("/increment_counter", {"count": 1}, "call-1", run=1)
        verified = await second.call("/verify", {**ROW, "response": {}}, "verify", run=1)
        assert (verified.json()["reward"], verified.json()["final_count"]) == (1.0, 6)


async def test_a_process_that_was_stopped_finds_its_lease_ended(tmp_path: Path) -> None:
    async with counter(tmp_path, free_port()) as server:
        await server.client.prepare(server.url, NAME, server.prepare(lease_s=0.5))
        os.kill(server.process.pid, signal.SIGSTOP)
        # Queued while the process stands still, and served first when it goes on.
        renewing = asyncio.ensure_future(
            server.client.renew(
                server.url, NAME, RenewRequest(**server.who, checkpoint_id="ck", lease_s=30)
            )
        )
        await asyncio.sleep(0.8)
        os.kill(server.process.pid, signal.SIGCONT)
        answer = await asyncio.wait_for(renewing, 5)
        assert (answer.held, answer.phase) == (False, Phase.OPEN)
        with pytest.raises(StaleCheckpoint):
            await server.client.prepare(server.url, NAME, server.prepare())


async def test_the_real_timer_opens_a_server_that_gets_no_request(tmp_path: Path) -> None:
    port = free_port()
    async with counter(tmp_path, port) as server:
        await server.client.prepare(server.url, NAME, server.prepare(lease_s=0.3))
        await asyncio.sleep(0.6)
        log = (tmp_path / f"counter-{port}.log").read_text()
        assert '"event": "lease_ended"' in log  # by itself: no request came since
        assert await server.phase() is Phase.OPEN


async def test_a_slow_tool_runs_to_its_end_though_its_caller_hangs_up(tmp_path: Path) -> None:
    async with counter(tmp_path, free_port(), "--tool-delay-s", "0.4") as server:
        await server.call("/seed_session", ROW, "seed")
        with pytest.raises(httpx.ReadTimeout):
            identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
            await server.http.post(
                "/increment_counter",
                json={"count": 3},
                headers=identity.mutation("call-0").headers(),
                timeout=0.1,
            )
        began = time.monotonic()
        assert (await server.client.prepare(server.url, NAME, server.prepare())).ready
        assert time.monotonic() - began > 0.1  # it waited for the mutation
        await server.client.resume(
            server.url, NAME, ResumeRequest(**server.who, checkpoint_id="ck")
        )
        again = await server.call("/increment_counter", {"count": 3}, "call-0")
        assert again.json() == {"success": True}
        assert (await server.call("/get_counter_value", {}, "call-1")).json() == {"count": 6}


async def test_the_client_types_what_it_meets(tmp_path: Path) -> None:
    async with counter(tmp_path, free_port()) as server:
        async with GymClient(SecretStr("other")) as stranger:
            with pytest.raises(Unauthorized):
                await stranger.capabilities(server.url, NAME)
        with pytest.raises(OtherServer, match=r"called counter.*`servers`"):
            await server.client.capabilities(server.url, "another")
        with pytest.raises(ServerFault) as missing:
            await server.client.manifest(server.url, NAME, "p0_g0")
        assert missing.value.details["http"] == 404
        began = time.monotonic()
        with pytest.raises(ServerUnreachable):
            deadline = asyncio.get_running_loop().time() + 0.3
            await retry_until(
                deadline, lambda: server.client.capabilities("http://127.0.0.1:21190", NAME)
            )
        assert 0.1 < time.monotonic() - began < 1
