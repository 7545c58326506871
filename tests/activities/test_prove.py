"""The question before a step that destroys, to a Temporal whose answers are given."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities import driving
from gym.protocol import StaleCheckpoint


class Temporal:
    """Fails with these statuses, one after the other, then confirms the try."""

    def __init__(self, *statuses: RPCStatusCode) -> None:
        self.statuses = list(statuses)

    def get_async_activity_handle(self, **_: Any) -> Temporal:
        return self

    async def heartbeat(self, **_: Any) -> None:
        if self.statuses:
            raise RPCError("no", self.statuses.pop(0), b"")

    async def asked(self) -> None:
        await ActivityEnvironment().run(driving.prove, cast(Client, self))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "PROVE_PAUSE_S", 0)


async def test_a_temporal_that_is_restarted_is_asked_again() -> None:
    """A claim has raised the incarnation already: giving up costs the job that was there.

    Break: activities/driving.py: take no answer for a try that has ended.
    """
    temporal = Temporal(RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED)
    await temporal.asked()
    assert temporal.statuses == []


async def test_a_try_that_temporal_has_given_up_destroys_nothing() -> None:
    """Break: activities/driving.py: ask on until it is confirmed."""
    temporal = Temporal(RPCStatusCode.UNAVAILABLE, RPCStatusCode.NOT_FOUND)
    with pytest.raises(StaleCheckpoint):
        await asyncio.wait_for(temporal.asked(), 5)


async def test_a_temporal_that_stays_away_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "PROVE_TIMEOUT_S", 0.05)
    temporal = Temporal(*[RPCStatusCode.UNAVAILABLE] * 1_000_000)
    with pytest.raises(StaleCheckpoint, match="does not confirm"):
        await asyncio.wait_for(temporal.asked(), 5)
