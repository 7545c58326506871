"""One adapter for each environment of the package `gymnasium` that can be saved and restored.

An adapter names the attributes that are an environment's state, with their bounds, the keyword
arguments that a row may give and the actions, and makes the text of an observation.
Guarantees: a state that an adapter accepts lies within the environment's own bounds and tables; any
other raises. Wrappers and random generators are `gym.environments.gymnasium_episode`'s.

Attributes for windows are not state, nor are the generators of action and observation spaces, which
Turnpoint never samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )


class Options(_Strict):
    """Keyword arguments of `gymnasium.make` that a row may give, whatever the environment."""

    max_episode_steps: int | None = Field(default=None, ge=1, le=1_000_000)
    """Steps after which the episode is truncated; None keeps the environment's own limit."""


class State(_Strict):
    """An environment's state; each field is the attribute of the same name."""


@dataclass(frozen=True)
class Adapter:
    """Description of one environment for saving, restoring and playing it.

    Attributes:
        state: Its attributes that a step reads.
        options: The keyword arguments that a row may give.
        actions: Names of the actions, as the model says them.
        show: The text of an observation, given the unwrapped environment and the observation.
        render_mode: The render mode that it is made with.
        possible: True if the imported state fits the environment's own tables.
    """

    state: type[State]
    options: type[Options]
    actions: Mapping[str, int]
    show: Callable[[Any, Any], str]
    render_mode: str | None = "ansi"
    possible: Callable[[Any], bool] = lambda environment: True

    def export(self, environment: Any) -> dict[str, Any]:
        """The state of an unwrapped environment, as JSON values."""
        found = {name: _plain(getattr(environment, name)) for name in self.state.model_fields}
        return self.state.model_validate(found).model_dump()

    def install(self, environment: Any, saved: Mapping[str, Any]) -> None:
        """Give an unwrapped environment that was just made a saved state.

        Raises:
            ValueError: It is not a state of this environment.
        """
        state = self.state.model_validate(saved)
        for name, value in state:
            setattr(environment, name, value)
        if not self.possible(environment):
            raise ValueError("a state that this environment does not have")


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own; lists are copied, so that the saved state is frozen."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _in_table(environment: Any) -> bool:
    return environment.s in environment.P


_COLOURED = re.compile(r"(?:\x1b\[[0-9;]*m)+(.)(?:\x1b\[0m)+")
"""One character in one or several colours: gymnasium marks a place of a text rendering so."""


def _map(environment: Any) -> str:
    """The text rendering, marked places in brackets instead of colours."""
    return _COLOURED.sub(r"[\1]", environment.render()).strip("\n")


class _TaxiOptions(Options):
    is_rainy: bool = False
    fickle_passenger: bool = False


class _TaxiState(State):
    s: int
    lastaction: Annotated[int, Field(ge=0, le=5)] | None
    fickle_step: bool


_STANDS = "RGYB"


def _show_taxi(environment: Any, _: Any) -> str:
    row, column, passenger, destination = environment.decode(environment.s)
    where = "in the taxi" if passenger == len(_STANDS) else f"waiting at {_STANDS[passenger]}"
    return (
        f"{_map(environment)}\nThe taxi is at row {row}, column {column}. The passenger is "
        f"{where} and wants to go to {_STANDS[destination]}."
    )


_TAXI = Adapter(
    state=_TaxiState,
    options=_TaxiOptions,
    actions={"south": 0, "north": 1, "east": 2, "west": 3, "pickup": 4, "dropoff": 5},
    show=_show_taxi,
    possible=_in_table,
)


class _FrozenLakeOptions(Options):
    map_name: Literal["4x4", "8x8"] | None = None
    is_slippery: bool = True
    success_rate: float = Field(default=1 / 3, ge=0, le=1)


class _GridState(State):
    s: int
    lastaction: Annotated[int, Field(ge=0, le=3)] | None


def _show_grid(environment: Any, _: Any) -> str:
    columns = environment.ncol if hasattr(environment, "ncol") else environment.shape[1]
    row, column = divmod(int(environment.s), columns)
    return f"{_map(environment)}\nYou are at row {row}, column {column}."


_FROZEN_LAKE = Adapter(
    state=_GridState,
    options=_FrozenLakeOptions,
    actions={"left": 0, "down": 1, "right": 2, "up": 3},
    show=_show_grid,
    possible=_in_table,
)


class _CliffWalkingOptions(Options):
    is_slippery: bool | None = None


_CLIFF_WALKING = Adapter(
    state=_GridState,
    options=_CliffWalkingOptions,
    actions={"up": 0, "right": 1, "down": 2, "left": 3},
    show=_show_grid,
    possible=_in_table,
)


class _BlackjackOptions(Options):
    natural: bool = False
    sab: bool | None = None


_Card = Annotated[int, Field(ge=1, le=10)]
_Hand = Annotated[list[_Card], Field(min_length=2, max_length=22)]
"""22: twenty-one aces do not bust, and one more card does."""


class _BlackjackState(State):
    player: _Hand
    dealer: _Hand
    dealer_top_card_suit: Literal["C", "D", "H", "S"]
    dealer_top_card_value_str: Literal["A", "2", "3", "4", "5", "6", "7", "8", "9", "J", "Q", "K"]


def _show_blackjack(_: Any, observation: Any) -> str:
    total, shown, usable_ace = observation
    ace = "an ace counted as 11" if usable_ace else "no ace counted as 11"
    return (
        f"Your hand: {total}, with {ace}.\nDealer shows: {shown}\n"
        "Respond with <action>hit</action> or <action>stand</action>."
    )


_BLACKJACK = Adapter(
    state=_BlackjackState,
    options=_BlackjackOptions,
    actions={"stand": 0, "stick": 0, "hit": 1},
    show=_show_blackjack,
    render_mode=None,  # it has no text rendering
)

ADAPTERS: Mapping[str, Adapter] = {
    "Blackjack-v1": _BLACKJACK,
    "CliffWalking-v1": _CLIFF_WALKING,
    "CliffWalkingSlippery-v1": _CLIFF_WALKING,
    "FrozenLake-v1": _FROZEN_LAKE,
    "FrozenLake8x8-v1": _FROZEN_LAKE,
    "Taxi-v4": _TAXI,
}
"""By the id that `gymnasium.make` takes. Any other environment is played and cannot be saved."""
