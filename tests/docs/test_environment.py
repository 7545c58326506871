"""The environment of the README: a server of its own, saved, killed, restored and asked again."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

import gym.resource
from gym.client import GymClient
from gym.protocol import (
    CommitRequest,
    Identity,
    JoinRequest,
    Mode,
    PrepareRequest,
    RestoreRequest,
    ResumeRequest,
)
from gym.retry import retry_until
from tests.docs.pages import ROOT, blocks
from tests.ports import free_port

NAME = "adder"
ROW = {"initial_count": 3, "expected_count": 8, "responses_create_params": {"input": "add 5"}}
RESPONSE = {"id": "resp_1", "object": "response", "output": []}
FOLDER = "tmp_snapshot_000001-aaaaaaaa"


class Server:
    """One process of the README's environment, joined to a job."""

    def __init__(self, client: GymClient, url: str, instance_id: str, incarnation: int) -> None:
        self.client, self.url = client, url
        self.ids: dict[str, Any] = {"instance_id": instance_id, "incarnation": incarnation}

    async def call(self, path: str, body: Any, place: str, run: int) -> dict[str, Any]:
        """One mutation of the rollout `p0_g0`."""
        identity = Identity(
            incarnation=self.ids["incarnation"], rollout_id="p0_g0", attempt=run
        ).mutation(place)
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as http:
            answer = await http.post(path, json=body, headers=identity.headers())
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def served(tmp_path: Path, incarnation: int, *flags: str) -> AsyncIterator[Server]:
    (source,) = blocks("python", ["README.md"])
    (tmp_path / "adder.py").write_text(source)
    (tmp_path / "token").write_text("token")
    (tmp_path / "token").chmod(0o600)
    port = free_port()
    command = [sys.executable, "adder.py", "--name", NAME, "--port", str(port), *flags]
    command += ["--snapshot-root", str(tmp_path), "--control-token-file", str(tmp_path / "token")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment)
    try:
        async with GymClient(SecretStr("token")) as client:
            url = f"http://127.0.0.1:{port}"
            found = await retry_until(time.monotonic() + 30, lambda: client.capabilities(url, NAME))
            assert found.mode is Mode.EXPORT_RESTORE
            await client.join(url, NAME, JoinRequest(job_id="job", incarnation=incarnation))
            yield Server(client, url, found.instance_id, incarnation)
    finally:
        process.kill()
        await process.wait()


def test_the_environment_of_the_readme_exports_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break: README.md: leave `import_state` out."""
    kinds: list[Any] = []
    monkeypatch.setattr(gym.resource, "serve_environment", kinds.append)
    (source,) = blocks("python", ["README.md"])
    exec(source, {"__name__": "adder"})
    counter = kinds[0]()
    assert counter.mode is Mode.EXPORT_RESTORE
    assert counter.import_state(counter.export_state(5)) == 5
    assert len([line for line in source.splitlines() if line.strip()]) <= 16


@pytest.mark.real
async def test_the_environment_of_the_readme_survives_a_crash(tmp_path: Path) -> None:
    """Break: README.md: leave `import_state` out."""
    (tmp_path / FOLDER / "gym").mkdir(parents=True)
    folder = str(tmp_path / FOLDER)
    async with served(tmp_path, 1) as server:
        await server.call("seed_session", ROW, "seed", 0)
        assert await server.call("add", {"amount": 2}, "call-0", 0) == {"count": 5}
        await server.client.prepare(
            server.url,
            NAME,
            PrepareRequest(**server.ids, checkpoint_id="ck", budget_s=5, lease_s=30),
        )
        saved = await server.client.commit(
            server.url,
            NAME,
            CommitRequest(**server.ids, checkpoint_id="ck", budget_s=5, folder=folder),
        )
    async with served(tmp_path, 2, "--expect-restore", "true") as server:
        await server.client.restore(
            server.url,
            NAME,
            RestoreRequest(
                **server.ids,
                restore_id="re",
                source_checkpoint_id="ck",
                folder=folder,
                files=saved.files,
            ),
        )
        await server.client.resume(
            server.url, NAME, ResumeRequest(**server.ids, checkpoint_id="re")
        )
        assert await server.call("add", {"amount": 3}, "call-1", 1) == {"count": 8}
        judged = await server.call("verify", {**ROW, "response": RESPONSE}, "verify", 1)
        assert judged["reward"] == 1.0
