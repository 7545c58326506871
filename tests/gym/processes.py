"""Gym servers as real processes, on the same ports every time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from gym.client import GymClient
from gym.protocol import ServerUnreachable
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, TOKEN, serving
from tests.ports import free_port

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
