"""The Ray actor that serves the generation endpoint: uvicorn inside it, restarted by Ray.

Guarantees: one endpoint per job, on the configured port; what it has answered is in
TransferQueue, so a restarted actor answers the same calls the same way and needs no other
state. It serves from a thread with an event loop of its own, started with the actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import ray
import uvicorn
from fastapi import FastAPI

from rl.actor_methods import require_incarnation
from rl.config import JobConfig
from rl.errors import PortTaken
from rl.generation.app import PARTICIPANT, Generation, create_app
from rl.messages import GENERATION

_BIND_TIMEOUT_S = 20.0
"""Longest time that a killed predecessor keeps the port."""
_BIND_POLL_S = 0.1

_log = logging.getLogger(__name__)


class GenerationServer:
    """The endpoint's process. Make the actor with `generation_actor`.

    Args:
        config: The job's configuration.
        incarnation: The one it serves; calls of another are refused.
    """

    def __init__(self, config: JobConfig, incarnation: int) -> None:
        self._config = config
        self._incarnation = incarnation
        self._came_back = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._serving: Future[str] = Future()
        # At once: after a restart by Ray `ready` is not called.
        threading.Thread(target=self._serve, name="generation", daemon=True).start()

    async def ready(self, incarnation: int) -> str:
        """Wait until the endpoint answers.

        Returns:
            Its base URL, ending in `/v1`.

        Raises:
            StaleIncarnation: Another incarnation's call.
            PortTaken: The port is not free.
            DataPlaneLost: There is no TransferQueue.
        """
        require_incarnation(incarnation, self._incarnation, PARTICIPANT)
        # Shielded: a caller that is cancelled does not cancel the start.
        return await asyncio.shield(asyncio.wrap_future(self._serving))

    def _serve(self) -> None:
        reason = "server stopped"
        try:
            asyncio.run(self._run())
        except Exception as error:
            reason = type(error).__name__
            if not self._serving.done() and not self._came_back:
                self._serving.set_exception(error)  # raised by `ready`
                return
        _log.error("generation_ended", extra={"event": "generation_ended", "error": reason})
        # An actor that lives and does not serve would never be restarted.
        os._exit(1)

    async def _run(self) -> None:
        from rl.data_plane.transfer_queue import DataPlane  # imports torch: not in each driver

        config = self._config
        generation = Generation(
            await DataPlane.attach(),
            incarnation=self._incarnation,
            policy_url=config.policy_url,
            policy_model=config.policy_model,
            weight_version=config.policy_sha256[:16] or config.policy_model,
        )
        app = create_app(generation)
        app.router.lifespan_context = self._lifespan
        listener = await asyncio.to_thread(_bound, config.generation_host, config.generation_port)
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, timeout_keep_alive=30)
        )
        try:
            await server.serve(sockets=[listener])
        finally:
            listener.close()
            await generation.aclose()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        # The socket listens already: a call from here on waits in its queue, none is refused.
        host, port = self._config.generation_host, self._config.generation_port
        self._serving.set_result(f"http://{host}:{port}/v1")
        yield


def generation_actor(config: JobConfig, incarnation: int) -> Any:
    """Start the detached actor (named; Ray starts it again whenever it dies)."""
    return (
        ray.remote(GenerationServer)
        .options(
            name=GENERATION, lifetime="detached", num_cpus=0, max_restarts=-1, max_concurrency=8
        )
        .remote(config, incarnation)
    )


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket. Blocks while the port is taken, for a limited time."""
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(2_048)
        except OSError as error:
            listener.close()
            if time.monotonic() > deadline:
                raise PortTaken(
                    f"{host}:{port} cannot be listened on ({error.strerror}): end what holds it, "
                    "or set another generation_port (`ports.generation` of a local stack)",
                    participant=PARTICIPANT,
                ) from None
            time.sleep(_BIND_POLL_S)
        else:
            return listener
