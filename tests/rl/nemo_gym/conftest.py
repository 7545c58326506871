"""A fleet of fake servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pydantic import SecretStr

from gym.client import GymClient
from rl.nemo_gym.fleet import Fleet
from tests.rl.gym_fakes import FakeFleet, fake_fleet

CHECKPOINT = "checkpoint-1"
SHA = "0" * 64


@pytest_asyncio.fixture
async def fakes() -> AsyncIterator[FakeFleet]:
    async with fake_fleet() as fleet:
        yield fleet


@pytest_asyncio.fixture
async def client() -> AsyncIterator[GymClient]:
    async with GymClient(SecretStr("token")) as client:
        yield client


@pytest.fixture
def fleet(fakes: FakeFleet, client: GymClient) -> Fleet:
    return Fleet(client, fakes.joined(), 1)
