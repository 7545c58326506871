"""The same with real processes: SIGKILL of all servers, a restore, and the next run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import ServerUnreachable
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, ROW, TOKEN, Fleet, serving
from tests.gym.test_agent_rollouts import files_of, parked_at
from tests.ports import free_port

pytestmark = pytest.mark.real


MODULES = {
    MODEL: "gym.model.server",
    AGENT: "gym.agent.server",
    COUNTER: "gym.environments.counter",
}


class Processes:
    """The servers, each a process of its own, on the same ports every time.

    Args:
        root: Snapshot root, and where logs go.
        generation_port: Of the fake endpoint.
        modules: Model, agent and resource server, in this order: name -> module.
    """

    def __init__(
        self,
        root: Path,
        generation_port: int,
        modules: Mapping[str, str] = MODULES,
    ) -> None:
        self.root = root
        self.modules = modules
        self.ports = {name: free_port() for name in modules}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self.running: list[asyncio.subprocess.Process] = []
        self._token = root / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        model, agent, resource = modules
        self._own = {
            model: ["--generation-url", f"http://127.0.0.1:{generation_port}/v1"],
            agent: [
                *("--model-url", self.urls[model], "--max-steps", "10"),
                *("--resource", f"{resource}={self.urls[resource]}"),
            ],
            resource: [],
        }

    async def start(self, *, expect_restore: bool) -> None:
        for name, module in self.modules.items():
            flags = [*("--name", name), *("--port", str(self.ports[name]))]
            flags += ["--snapshot_root", str(self.root), "--control_token_file", str(self._token)]
            flags += ["--expect_restore", str(expect_restore).lower(), *self._own[name]]
            log = (self.root / f"{name}.log").open("ab")
            with log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", module, *flags, stderr=log
                )
            self.running.append(process)

    async def answering(self, client: GymClient) -> None:
        async with asyncio.timeout(60):
            for name in self.modules:
                while True:
                    try:
                        await client.capabilities(self.urls[name], name)
                        break
                    except ServerUnreachable:
                        await asyncio.sleep(0.05)

    async def kill(self) -> None:
        for process in self.running:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        self.running = []


@asynccontextmanager
async def processes(
    root: Path,
    generation: FakeGeneration,
    modules: Mapping[str, str] = MODULES,
) -> AsyncIterator[Processes]:
    port = free_port()
    async with serving({port: generation.app()}):
        made = Processes(root, port, modules)
        try:
            yield made
        finally:
            await made.kill()


@pytest.mark.timeout(180)
async def test_killed_servers_go_on_from_the_snapshot(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with (
        processes(tmp_path, generation) as running,
        GymClient(SecretStr(TOKEN), connect_s=2) as client,
    ):
        await running.start(expect_restore=False)
        await running.answering(client)
        servers = Fleet(tmp_path, client, generation, running.urls)
        await servers.join()
        rollouts = [f"p{prompt}_g{generation_}" for prompt in range(2) for generation_ in range(2)]
        runs = await parked_at(servers, 2, *rollouts)
        answers = await servers.commit_all()
        await servers.resume_all()
        await generation.hold_from(4)  # some turns more, which the crash costs
        await generation.until_waiting("call-4", len(rollouts))
        await running.kill()
        lost = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(error, ServerUnreachable) for error in lost)
        await generation.hold_from(None)

        await running.start(expect_restore=True)
        await running.answering(client)
        await servers.join(2)
        await servers.restore_all(files_of(answers))
        await servers.resume_all("r1")
        results = await asyncio.gather(*(servers.run(rollout, 1) for rollout in rollouts))
        for rollout, (result, headers) in zip(rollouts, results, strict=True):
            assert (result["reward"], result["final_count"]) == (1.0, ROW["expected_count"])
            assert json.loads(headers["x-turnpoint-resource-revisions"]) == {COUNTER: 7}
            again = [call for call in generation.calls_of(rollout) if "-a1/" in call]
            assert again == [f"{rollout}-a1/call-{k}" for k in (3, 4, 5)]
            manifest = await client.manifest(running.urls[MODEL], MODEL, f"{rollout}-a1")
            assert len(manifest.records) == 6
    agent_log = (tmp_path / f"{AGENT}.log").read_text().splitlines()
    events = [json.loads(line) for line in agent_log]
    continued = [event for event in events if event.get("event") == "run_continued"]
    assert sorted(event["after"] for event in continued) == ["call-2"] * 4
    assert "z\\u00e4hle" not in "".join(agent_log)
