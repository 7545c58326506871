"""Resource servers in the gymnasium style: `/reset` and `/step` instead of seed, tools, verify.

    class Dice(GymnasiumServer[Episode]):
        async def reset(self, session, row): ...            # session.state = ...; first observation
        async def step(self, session, row, response): ...   # act, answer what came of it
        def export_state(self, state): ...                  # as for every environment
        def import_state(self, data): ...

Guarantees: those of `gym.resource.session` and `gym.resource.part`. `/reset` is the session's seed,
its request id `<capture_key>/seed/0`; a `/step` is step 0 of a turn: `<capture_key>/<call>/0`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from fastapi import FastAPI

from gym.formats.gymnasium import ResetAnswer, StepAnswer
from gym.resource.server import Environment, environment_app, row_and_response
from gym.resource.session import Session
from gym.server.settings import ServerSettings

S = TypeVar("S")


class GymnasiumServer(Environment[S]):
    """An environment that is reset and stepped. `S` is the type of one session's state."""

    @abstractmethod
    async def reset(self, session: Session[S], row: dict[str, Any]) -> ResetAnswer:
        """Begin an episode from the dataset row: assigns `session.state`."""

    @abstractmethod
    async def step(
        self, session: Session[S], row: dict[str, Any], response: dict[str, Any]
    ) -> StepAnswer:
        """Act on one answer of the model (a Responses body)."""


def create_gymnasium_app(environment: GymnasiumServer[Any], settings: ServerSettings) -> FastAPI:
    """The application of one gymnasium-style resource server.

    Raises:
        ValueError: No control token is configured.
    """
    app, routes = environment_app(environment, settings)

    async def reset(session: Session[Any], body: dict[str, Any]) -> ResetAnswer:
        answer = await environment.reset(session, body)
        session.seeded = True
        return answer

    async def step(session: Session[Any], body: dict[str, Any]) -> StepAnswer:
        return await environment.step(session, *row_and_response(body))

    routes.add(app, "reset", "seed", reset)
    routes.add(app, "step", "step", step)
    return app
