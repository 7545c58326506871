"""The typed client of the actor `NemoGym`."""

from __future__ import annotations

import pytest

from rl.errors import ActorLost
from rl.messages import NEMO_GYM
from rl.nemo_gym import client
from rl.nemo_gym.actor import NemoGym
from tests.rl.client_checks import assert_fits


async def test_each_method_is_one_that_the_actor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break: rl/nemo_gym/client.py: leave out an argument, or name another method."""
    await assert_fits(monkeypatch, client, client.NemoGymClient, NemoGym, NEMO_GYM)


async def test_a_run_outlives_an_actor_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls are made once. Break: rl/nemo_gym/client.py: let `run` use `_call`."""
    tries: list[str] = []

    async def call(name: str, method: str, *args: object, timeout_s: float | None = None) -> str:
        tries.append(method)
        if len(tries) < 3:
            raise ActorLost("it died", participant=name)
        return "answer"

    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(client, "_PAUSE_S", 0.001)
    nemo_gym = client.NemoGymClient(1)
    await nemo_gym.acknowledge("p0_g0", 0, "digest", "agent")
    assert tries == ["acknowledge"] * 3
    tries.clear()
    with pytest.raises(ActorLost):
        await nemo_gym.inventory("checkpoint-1")
    assert tries == ["inventory"]


async def test_an_actor_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(name: str, method: str, *args: object, timeout_s: float | None = None) -> None:
        raise ActorLost("it died", participant=name)

    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(client, "_PAUSE_S", 0.001)
    monkeypatch.setattr(client, "_AWAY_S", 0.01)
    with pytest.raises(ActorLost):
        await client.NemoGymClient(1).forget("p0_g0", "agent")
