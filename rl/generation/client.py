"""Typed call of the actor that serves the generation endpoint."""

from __future__ import annotations

from typing import cast

from rl.actors import call
from rl.messages import GENERATION


class GenerationServerClient:
    """The endpoint of one incarnation; another incarnation's refuses with `StaleIncarnation`.

    Args:
        incarnation: Sent with each call.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    async def ready(self, *, timeout_s: float | None = None) -> str:
        """Wait until the endpoint answers; returns its base URL, ending in `/v1`."""
        return cast(str, await call(GENERATION, "ready", self._incarnation, timeout_s=timeout_s))
