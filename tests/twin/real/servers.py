"""`python -m tests.twin.real.servers KIND ...`: all Gym servers of one kind in one process.

The applications of `tests.twin.fleet`, each on a port of its own, on one event loop: on two cores
three processes start in a third of the time of eleven. Configuration comes from the
stack's environment. A log line of a server has its name in `served_by`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from contextvars import ContextVar
from typing import Any

import uvicorn

from gym.logs import configure_logging
from gym.protocol import Kind
from tests.twin.fleet import KINDS, make
from tests.twin.mishaps import App, Mishaps
from workers.config.settings import Settings, load_settings

TOOL_DELAY_S = 0.03
_served_by: ContextVar[str] = ContextVar("server whose call is handled", default="")


class _Named(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.served_by = _served_by.get()
        return True


def _named(name: str, app: App) -> App:
    async def call(scope: Any, receive: Any, send: Any) -> None:
        _served_by.set(name)  # each request is a task of its own
        await app(scope, receive, send)

    return call


async def _serve(settings: Settings, kind: Kind, *, expect_restore: bool, mishaps: Mishaps) -> None:
    urls = {server.name: server.url for server in settings.servers}
    serving = []
    for name in (name for name, its in KINDS.items() if its is kind):
        port = int(urls[name].rpartition(":")[2])
        common = {
            "name": name,
            "port": port,
            "snapshot_root": settings.snapshots,
            "control_token_file": settings.token_file,
            "expect_restore": expect_restore,
        }
        generation = f"http://{settings.generation_host}:{settings.generation_port}/v1"
        app = make(name, common, urls, generation, tool_delay_s=TOOL_DELAY_S)
        config = uvicorn.Config(
            _named(name, mishaps.around(app, kind)), port=port, log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        serving.append(server.serve())
    await asyncio.gather(*serving)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.twin.real.servers", description=__doc__)
    parser.add_argument("kind", type=Kind)
    parser.add_argument("--expect-restore", action="store_true")
    parser.add_argument("--seed", type=int, required=True, help="of the mishaps")
    parser.add_argument("--slow-s", type=float, default=0.4)
    parser.add_argument("--undisturbed", action="store_true", help="without mishaps")
    given = parser.parse_args()
    configure_logging(given.kind.value)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Named())
    mishaps = Mishaps(given.seed, given.slow_s, active=not given.undisturbed)
    settings = load_settings(attach=False)
    asyncio.run(_serve(settings, given.kind, expect_restore=given.expect_restore, mishaps=mishaps))


if __name__ == "__main__":
    main()
