"""The typed client of the actor `DataPlaneHost`."""

from __future__ import annotations

import pytest

from rl.data_plane import client
from rl.data_plane.host import DataPlaneHost
from rl.messages import DATA_PLANE_HOST
from tests.rl.client_checks import assert_fits


async def test_each_method_is_one_that_the_actor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break: rl/data_plane/client.py: leave out an argument, or name another method."""
    await assert_fits(
        monkeypatch, client, client.DataPlaneHostClient, DataPlaneHost, DATA_PLANE_HOST
    )
