"""Gym servers that a test starts itself, beside a local stack that does not know them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.real.live import Live, wait_for


@dataclass
class OwnServers:
    """The Gym servers of one job; always on the same ports."""

    live: Live
    urls: Mapping[str, str]
    """By name."""
    modules: Mapping[str, Sequence[str]]
    """By name: module, then its own words and flags."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Besides the caller's environment."""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, expect_restore: bool) -> None:
        """Start all of them and wait until they answer."""
        settings = self.live.settings
        for name, (module, *own) in self.modules.items():
            flags = [
                *("--name", name, "--port", self.urls[name].rpartition(":")[2]),
                *("--snapshot-root", str(settings.snapshots)),
                *("--control-token-file", str(settings.token_file)),
                *("--expect-restore", str(expect_restore).lower()),
            ]
            self.spawn(name, [module, *own, *flags])
        wait_for(lambda: all(is_healthy(url) for url in self.urls.values()), "the servers", 90)

    def spawn(self, name: str, words: Sequence[str]) -> None:
        """Start a process that ends with them."""
        with (self.live.folder / "logs" / f"{name}.log").open("ab") as log:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-m", *words],
                    stderr=log,
                    cwd=Path(__file__).parents[2],
                    env=os.environ | self.env,
                )
            )

    def kill(self) -> None:
        """SIGKILL to all of them."""
        for process in self.running:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
        self.running = []


def is_healthy(url: str) -> bool:
    """Tell whether a server answers."""
    try:
        return httpx.get(f"{url}/health", timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False
