"""The typed client of the actor `GenerationServer`."""

from __future__ import annotations

import pytest

from rl.generation import client
from rl.generation.actor import GenerationServer
from rl.messages import GENERATION
from tests.rl.client_checks import assert_fits


async def test_each_method_is_one_that_the_actor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break: rl/generation/client.py: leave out an argument, or name another method."""
    await assert_fits(
        monkeypatch, client, client.GenerationServerClient, GenerationServer, GENERATION
    )
