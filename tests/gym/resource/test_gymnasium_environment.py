"""Environments that are reset and stepped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gym.resource import GymnasiumEnvironment, ResetAnswer, Session, StepAnswer
from tests.gym.resource_server import served


class Walk(GymnasiumEnvironment[int]):
    """Each step goes one further; the third is the last."""

    async def reset(self, session: Session[int], row: dict[str, Any]) -> ResetAnswer:
        session.state = row["place"]
        return ResetAnswer(observation=f"at {session.state}")

    async def step(
        self, session: Session[int], row: dict[str, Any], response: dict[str, Any]
    ) -> StepAnswer:
        session.state += response["steps"]
        return StepAnswer(reward=1.0, terminated=session.state >= 3)


async def test_a_reset_makes_the_session_that_steps_change(tmp_path: Path) -> None:
    """Break: gym/resource/part.py: leave `seeded` as it is after a seed."""
    async with served(Walk(), tmp_path) as server:
        lost = await server.call("/step", {"response": {"steps": 1}}, "call-0")
        assert lost.json()["code"] == "session_lost"
        reset = await server.call("/reset", {"place": 1}, "seed")
        assert (reset.status_code, reset.json()["observation"]) == (200, "at 1")
        for call, over in (("call-0", False), ("call-1", True)):
            answer = await server.call("/step", {"response": {"steps": 1}}, call)
            assert (answer.json()["reward"], answer.json()["terminated"]) == (1.0, over)
        assert "x-turnpoint-resource-revision" not in answer.headers  # it exports no state


async def test_a_step_without_a_response_is_refused(tmp_path: Path) -> None:
    async with served(Walk(), tmp_path) as server:
        await server.call("/reset", {"place": 1}, "seed")
        refused = await server.call("/step", {}, "call-0")
        assert (refused.status_code, refused.json()["details"]) == (422, {"fields": ["response"]})
