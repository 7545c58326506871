"""The resource server `gymnasium`: plays environments of the package `gymnasium`.

A row names its environment (`environment`, `environment_options`, `seed`); one that names none
plays the first of `--environments`, so NeMo Gym's blackjack rows are valid input. A row without
a seed gets one from its rollout's id: the same rollout meets the same chances however often it
starts over. A caller without identity meets new ones in each episode. Mode `export_restore` if
every environment has an adapter, else `restart_only`.

Run it as `python -m gym.environments.gymnasium_server --name gymnasium --port P --snapshot-root R
--control-token-file F [--environments Taxi-v4,FrozenLake-v1]`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import NoDecode

from gym.environments.gymnasium_actions import Wish, named_action, spelled_action, wish_of
from gym.environments.gymnasium_adapters import ADAPTERS
from gym.environments.gymnasium_episode import (
    Episode,
    can_be_saved,
    export_episode,
    import_episode,
    make,
)
from gym.protocol import Mode
from gym.resource import (
    GymnasiumEnvironment,
    Refused,
    ResetAnswer,
    ServerSettings,
    Session,
    StepAnswer,
    StepInfo,
    ToolOutput,
    inner_identity,
    parse,
    serve_environment,
)
from gym.server.answers import invalid_request

DEFAULT_ENVIRONMENTS = ("Blackjack-v1", "CliffWalking-v1", "FrozenLake-v1", "Taxi-v4")


def _listed(value: object) -> object:
    parts = value if isinstance(value, list | tuple) else [value]
    return [name.strip() for part in parts for name in str(part).split(",")]


class GymnasiumServerSettings(ServerSettings):
    """Settings of the server."""

    environments: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        default=DEFAULT_ENVIRONMENTS, min_length=1
    )
    """Environments that rows may name, by the ids of `gymnasium.make`; the first is the one of
    rows that name none."""


class _Row(BaseModel):
    """The row's own keys that a reset needs; all others pass through."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    environment: str | None = None
    environment_options: dict[str, Any] = {}
    seed: Annotated[int, Field(ge=0, strict=True)] | None = None


class Gymnasium(GymnasiumEnvironment[Episode]):
    """Episodes of the package `gymnasium`.

    Each environment of the settings is made once, which tells whether it can be saved.

    Raises:
        gymnasium.error.Error: One of them does not exist, or cannot be made.
    """

    def __init__(self, settings: GymnasiumServerSettings) -> None:
        environments = settings.environments
        self._first = environments[0]
        self._playable = frozenset(environments)
        savable = [can_be_saved(name) for name in environments]
        self._mode = Mode.EXPORT_RESTORE if all(savable) else Mode.RESTART_ONLY

    @property
    def mode(self) -> Mode:
        """`restart_only` as soon as one environment cannot be saved: a mode is the server's."""
        return self._mode

    async def reset(self, session: Session[Episode], row: dict[str, Any]) -> ResetAnswer:
        """Make the row's environment and reset it."""
        wanted = parse(_Row, row)
        name = wanted.environment or self._first
        if name not in self._playable:
            raise Refused.with_error(invalid_request([{"loc": ("environment",)}]))
        identity = inner_identity()
        chance = identity.rollout_id if identity is not None else session.id
        seed = _seed_of(chance) if wanted.seed is None else wanted.seed
        try:
            episode = await asyncio.to_thread(make, name, wanted.environment_options)
        except ValidationError as error:
            fields = [("environment_options", *item["loc"]) for item in error.errors()]
            raise Refused.with_error(invalid_request([{"loc": loc} for loc in fields])) from None
        observation, info = await asyncio.to_thread(episode.environment.reset, seed=seed)
        session.state = episode
        return ResetAnswer(
            observation=episode.show(observation), info={"environment": name, **_json(info)}
        )

    async def step(
        self, session: Session[Episode], row: dict[str, Any], response: dict[str, Any]
    ) -> StepAnswer:
        """Play the action that the model named; an answer without one changes nothing."""
        episode = session.state
        if episode.over:
            raise Refused("the episode is over", status=409)
        wish = wish_of(response)
        adapter = ADAPTERS.get(episode.environment_id)
        if adapter is not None:
            action: Any = named_action(wish.action, adapter.actions)
            choices = " or ".join(f"<action>{name}</action>" for name in adapter.actions)
        else:
            action = spelled_action(wish.action, episode.environment.action_space)
            choices = "one of the action space, as JSON in <action></action>"
        if action is None:
            return _said(wish, f"That is no action. Respond with {choices}.")
        observation, reward, terminated, truncated, info = await asyncio.to_thread(
            episode.environment.step, action
        )
        episode.over = terminated or truncated
        answer = _said(wish, episode.show(observation))
        # The names of `info` that NeMo Gym's agents read are not the environment's to give.
        told = {"action": wish.action, **_json(info), "tool_outputs": answer.info.tool_outputs}
        return StepAnswer(
            observation=answer.observation,
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info=StepInfo.model_validate(told),
        )

    def export_state(self, state: Episode) -> bytes:
        """JSON, see `gym.environments.gymnasium_episode`."""
        return export_episode(state)

    def import_state(self, data: bytes) -> Episode:
        """The episode behind its JSON."""
        return import_episode(data, self._playable)


def _seed_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def _said(wish: Wish, text: str) -> StepAnswer:
    """The answer whose text reaches the model as it acted: as the call's output or a message."""
    if not wish.call_ids:
        return StepAnswer(observation=text)
    late = json.dumps({"error": "only the first call of a turn acts"})
    outputs = [text, *[late] * (len(wish.call_ids) - 1)]
    tools = [
        ToolOutput(call_id=call_id, output=output)
        for call_id, output in zip(wish.call_ids, outputs, strict=True)
    ]
    return StepAnswer(info=StepInfo(tool_outputs=tools))


def _json(info: Any) -> Any:
    """An environment's info as JSON values; values without a JSON form are left out."""
    if isinstance(info, dict):
        return {str(key): value for key, item in info.items() if (value := _json(item)) is not None}
    if isinstance(info, np.ndarray | np.generic):
        return _json(info.tolist())
    if isinstance(info, list | tuple):
        return [_json(item) for item in info]
    if isinstance(info, float):
        return info if math.isfinite(info) else None
    return info if isinstance(info, bool | int | str) else None


if __name__ == "__main__":
    serve_environment(Gymnasium, GymnasiumServerSettings)
