"""The snapshot worker serves every activity that the workflows call, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pydantic import SecretStr
from temporalio.client import Client

from gym.client import GymClient
from tests.rl.folder_cases import config_of
from tests.workflows.conftest import _REQUESTS
from workers.worker import activities_of


async def test_every_activity_of_the_contract_is_served_once(tmp_path: Path) -> None:
    """Break: workers/worker.py: leave one out; its phase would wait until its deadline."""
    async with GymClient(SecretStr("t" * 40)) as gym:
        served: list[Any] = activities_of(cast(Client, None), config_of(tmp_path), gym)
    names = [activity.__temporal_activity_definition.name for activity in served]
    assert sorted(names) == sorted(_REQUESTS)
