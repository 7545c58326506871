"""Environments in the gymnasium style: `/reset` and `/step` instead of seed, tools, verify.

    class Walk(GymnasiumEnvironment[Episode]):
        async def reset(self, session, row): ...            # session.state = ...; first observation
        async def step(self, session, row, response): ...   # act, answer what came of it
        def export_state(self, state): ...                  # as for every environment
        def import_state(self, data): ...

`/reset` is the session's seed, its request id `<capture_key>/seed/0`; a `/step` is step 0 of a
turn: `<capture_key>/<call>/0`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from gym.formats.gymnasium import ResetAnswer, StepAnswer
from gym.resource.environment import BaseEnvironment, Route, row_and_response
from gym.resource.session import Session

S = TypeVar("S")


class GymnasiumEnvironment(BaseEnvironment[S]):
    """An environment that is reset and stepped. `S` is the type of one session's state."""

    @abstractmethod
    async def reset(self, session: Session[S], row: dict[str, Any]) -> ResetAnswer:
        """Begin an episode from the dataset row: assigns `session.state`."""

    @abstractmethod
    async def step(
        self, session: Session[S], row: dict[str, Any], response: dict[str, Any]
    ) -> StepAnswer:
        """Act on one answer of the model (a Responses body)."""

    def routes(self) -> list[Route[S]]:
        """Reset and step."""

        async def step(session: Session[S], body: dict[str, Any]) -> StepAnswer:
            return await self.step(session, *row_and_response(body))

        return [Route("reset", "seed", self.reset), Route("step", "step", step)]
