"""The typed client of the actor `SingleController`."""

from __future__ import annotations

import pytest

from rl.controller import client
from rl.controller.actor import SingleController
from rl.messages import SINGLE_CONTROLLER
from tests.rl.client_checks import assert_fits


async def test_each_method_is_one_that_the_actor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break: rl/controller/client.py: leave out an argument, or name another method."""
    await assert_fits(
        monkeypatch, client, client.SingleControllerClient, SingleController, SINGLE_CONTROLLER
    )
