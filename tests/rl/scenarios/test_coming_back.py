"""Actors that Ray starts again under a live job neither end a run nor hang."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from gym.protocol import DeadlineExceeded, TurnpointError
from rl.controller import client as controller_client
from rl.errors import ActorLost, ControllerLost, PortTaken
from rl.generation import actor as generation
from rl.messages import JoinedServer
from rl.nemo_gym import actor as nemo_gym
from tests.rl.fakes import config, servers


@pytest.fixture(autouse=True)
def came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray tells an actor that it has started again."""
    context = SimpleNamespace(was_current_actor_reconstructed=True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


@pytest.mark.parametrize(
    ("known", "error", "raised"),
    [
        (servers(), DeadlineExceeded("servers: no answer in 10 s"), None),
        (servers(), ActorLost("not there yet"), None),
        (None, DeadlineExceeded("servers: no answer in 10 s"), ActorLost),
        (None, ActorLost("it is gone"), ControllerLost),
    ],
)
async def test_a_controller_that_is_busy_is_no_failure_of_the_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: list[JoinedServer] | None,
    error: TurnpointError,
    raised: type[TurnpointError] | None,
) -> None:
    """Otherwise each run under way would start over, and count as failed after three answers.

    Break: rl/nemo_gym/actor.py: let the `DeadlineExceeded` of the controller rise.
    """

    async def call(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(controller_client, "call", call)
    actor = nemo_gym.NemoGym(config(tmp_path), 1, known)
    try:
        if raised is None:
            assert await actor._server_list() == known
        else:
            with pytest.raises(raised):
                await actor._server_list()
    finally:
        actor._loop.call_soon_threadsafe(actor._loop.stop)


def test_an_endpoint_that_does_not_come_back_ends_so_that_ray_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `ready` is not asked again: a living endpoint without a port would block model calls.

    Break: rl/generation/actor.py: keep the error for a caller of `ready`.
    """
    ended: list[int] = []

    async def refused(_: generation.GenerationServer) -> None:
        raise PortTaken("another process listens there")

    monkeypatch.setattr(generation.GenerationServer, "_run", refused)
    monkeypatch.setattr(generation.os, "_exit", ended.append)
    monkeypatch.setattr(generation.threading, "Thread", _AtOnce)
    generation.GenerationServer(config(tmp_path), 1)
    assert ended == [1]


class _AtOnce:
    """A thread that runs where it is started."""

    def __init__(self, target: Any, **_: Any) -> None:
        self.start = target
