"""Calls on the NemoGym actor: those about a run outlive it, all others are made once."""

from __future__ import annotations

from typing import Any

import pytest

from rl.controller import collaborators
from rl.controller.collaborators import NemoGymClient
from rl.errors import ActorLost, DataPlaneLost, RayUnreachable
from rl.messages import RunRequest
from tests.rl.fakes import AGENT

REQUEST = RunRequest(rollout_id="p0_g0", attempt_index=0, agent=AGENT, row={})


class Actor:
    """NemoGym as `rl.actors.call` reaches it: answers with errors first, then with the method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._errors = list(errors)
        monkeypatch.setattr(collaborators, "call", self._call)
        monkeypatch.setattr(collaborators, "_PAUSE_S", 0.001)

    async def _call(self, name: str, method: str, *given: Any) -> str:
        self.calls.append((name, method, *given))
        if self._errors:
            raise self._errors.pop(0)
        return method


async def test_a_run_is_asked_for_again_when_nemo_gym_was_away_and_answers_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Break: rl/controller/collaborators.py: let the loss of the actor end the run."""
    actor = Actor(monkeypatch, ActorLost("died"), RayUnreachable("no cluster"))
    assert await NemoGymClient(3).run(REQUEST) == "run"
    assert actor.calls == [("NemoGym", "run", 3, REQUEST)] * 3


@pytest.mark.parametrize("method", ["acknowledge", "let_go", "forget"])
async def test_what_follows_a_run_is_repeated_too(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    actor = Actor(monkeypatch, ActorLost("died"))
    given = ("p0_g0", 0, "digest", AGENT) if method == "acknowledge" else ("p0_g0", AGENT)
    await getattr(NemoGymClient(3), method)(*given)
    assert actor.calls == [("NemoGym", method, 3, *given)] * 2


async def test_an_absence_ends_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch, *[ActorLost("died")] * 2)
    monkeypatch.setattr(collaborators, "_AWAY_S", -1.0)
    with pytest.raises(ActorLost):
        await NemoGymClient(3).run(REQUEST)
    assert len(actor.calls) == 1


async def test_other_errors_and_other_calls_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = Actor(monkeypatch, DataPlaneLost("gone"), ActorLost("died"))
    with pytest.raises(DataPlaneLost):
        await NemoGymClient(3).run(REQUEST)
    with pytest.raises(ActorLost):
        await NemoGymClient(3).inventory("ck")
    assert len(actor.calls) == 2
