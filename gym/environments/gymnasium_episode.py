"""An episode of an environment of the package `gymnasium`: made, shown, saved and restored.

Guarantees: a restored episode behaves like the one that was saved, operation for operation,
random draws included. What is saved is JSON: the environment's own state (by its adapter), the
state of its wrappers (steps elapsed, whether it was reset) and of its random generator. An
environment without an adapter, or with a wrapper that is not known here, is played and never
saved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from pydantic import BaseModel, ConfigDict, Field

from gym.environments.gymnasium_adapters import ADAPTERS, Options
from gym.protocol import canonical_json

_128_BITS = 2**128


@dataclass
class Episode:
    """One episode under way.

    Attributes:
        environment_id: As `gymnasium.make` takes it.
        options: Keyword arguments that the row gave.
        environment: With its wrappers.
        over: It has ended; nothing more is played.
    """

    environment_id: str
    options: dict[str, Any]
    environment: gymnasium.Env[Any, Any]
    over: bool = False

    def show(self, observation: Any) -> str:
        """The text of an observation."""
        environment = self.environment.unwrapped
        if (adapter := ADAPTERS.get(self.environment_id)) is not None:
            return adapter.show(environment, observation)
        rendered = environment.render() if environment.render_mode == "ansi" else None
        return rendered if isinstance(rendered, str) else str(observation)


def make(environment_id: str, options: dict[str, Any]) -> Episode:
    """An episode that was not reset yet.

    Raises:
        ValueError: Options that this environment's rows may not give.
        gymnasium.error.Error: No such environment, or it cannot be made.
    """
    adapter = ADAPTERS.get(environment_id)
    allowed = Options if adapter is None else adapter.options
    given = allowed.model_validate(options).model_dump(exclude_unset=True)
    # `None` means "as registered", the same as leaving the argument out.
    given = {name: value for name, value in given.items() if value is not None}
    mode = _text_mode(environment_id) if adapter is None else adapter.render_mode
    # The checker keeps state of its own; its checks are for authors of environments.
    made = gymnasium.make(environment_id, render_mode=mode, disable_env_checker=True, **given)
    return Episode(environment_id, given, made)


def can_be_saved(environment_id: str) -> bool:
    """True if episodes of an environment can be saved.

    Raises:
        gymnasium.error.Error: No such environment, or it cannot be made.
    """
    made = make(environment_id, {})
    try:
        kinds = _wrappers(made.environment).keys()
        known = OrderEnforcing in kinds and kinds <= {OrderEnforcing, TimeLimit}
        return known and environment_id in ADAPTERS
    finally:
        made.environment.close()


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Generator(_Saved):
    """A PCG64 generator; the two 128-bit numbers in decimal, which every JSON reader keeps."""

    bit_generator: Literal["PCG64"]
    state: Annotated[str, Field(pattern=r"^[0-9]{1,39}$")]
    inc: Annotated[str, Field(pattern=r"^[0-9]{1,39}$")]
    has_uint32: Annotated[int, Field(ge=0, le=1)]
    uinteger: Annotated[int, Field(ge=0, lt=2**32)]


class _SavedEpisode(_Saved):
    schema_version: Literal[1] = 1
    environment: str
    options: dict[str, Any]
    over: bool
    state: dict[str, Any]
    elapsed_steps: Annotated[int, Field(ge=0)] | None
    """Of the wrapper TimeLimit; null if the environment has none."""
    has_reset: Literal[True] = True
    """Of the wrapper OrderEnforcing: an episode is saved only after its reset."""
    seed: str | None
    generator: _Generator


def export_episode(episode: Episode) -> bytes:
    """An episode as JSON.

    Raises:
        ValueError: Its state is not one that its adapter knows.
    """
    unwrapped: Any = episode.environment.unwrapped
    wrappers = _wrappers(episode.environment)
    limit = wrappers.get(TimeLimit)
    bits = unwrapped.np_random.bit_generator.state
    saved = _SavedEpisode(
        environment=episode.environment_id,
        options=episode.options,
        over=episode.over,
        state=ADAPTERS[episode.environment_id].export(unwrapped),
        elapsed_steps=None if limit is None else limit._elapsed_steps,
        has_reset=wrappers[OrderEnforcing]._has_reset,
        seed=str(unwrapped.np_random_seed),
        generator=_Generator(
            bit_generator=bits["bit_generator"],
            state=str(bits["state"]["state"]),
            inc=str(bits["state"]["inc"]),
            has_uint32=bits["has_uint32"],
            uinteger=bits["uinteger"],
        ),
    )
    return canonical_json(saved.model_dump())


def import_episode(data: bytes, playable: frozenset[str]) -> Episode:
    """The episode behind `export_episode`'s bytes.

    Args:
        data: The bytes.
        playable: Environments that may be made.

    Raises:
        ValueError: They are not an episode that this server could have saved.
        gymnasium.error.Error: The environment cannot be made.
    """
    saved = _SavedEpisode.model_validate(json.loads(data))
    if saved.environment not in playable or saved.environment not in ADAPTERS:
        raise ValueError("an environment that is not played here")
    episode = make(saved.environment, saved.options)
    episode.over = saved.over
    unwrapped: Any = episode.environment.unwrapped
    ADAPTERS[saved.environment].install(unwrapped, saved.state)
    unwrapped.np_random = _generator(saved.generator)
    unwrapped._np_random_seed = None if saved.seed is None else int(saved.seed)
    wrappers = _wrappers(episode.environment)
    wrappers[OrderEnforcing]._has_reset = saved.has_reset
    limit = wrappers.get(TimeLimit)
    if (limit is None) != (saved.elapsed_steps is None):
        raise ValueError("elapsed steps do not fit the environment's limit")
    if limit is not None:
        assert saved.elapsed_steps is not None
        if saved.elapsed_steps > limit._max_episode_steps - (not saved.over):
            raise ValueError("more steps elapsed than the environment allows")
        limit._elapsed_steps = saved.elapsed_steps
    return episode


def _generator(saved: _Generator) -> np.random.Generator:
    numbers = {"state": int(saved.state), "inc": int(saved.inc)}
    if max(numbers.values()) >= _128_BITS or numbers["inc"] % 2 == 0:
        raise ValueError("no state of a PCG64 generator")
    bits: Any = np.random.PCG64(0)
    bits.state = {
        "bit_generator": saved.bit_generator,
        "state": numbers,
        "has_uint32": saved.has_uint32,
        "uinteger": saved.uinteger,
    }
    return np.random.Generator(bits)


def _wrappers(environment: gymnasium.Env[Any, Any]) -> dict[type[Any], Any]:
    found: dict[type[Any], Any] = {}
    while isinstance(environment, gymnasium.Wrapper):
        found.setdefault(type(environment), environment)
        environment = environment.env
    return found


def _text_mode(environment_id: str) -> str | None:
    """The render mode that answers text, if the environment has it."""
    entry = gymnasium.spec(environment_id).entry_point
    kind = load_env_creator(entry) if isinstance(entry, str) else entry
    return "ansi" if "ansi" in getattr(kind, "metadata", {}).get("render_modes", ()) else None
