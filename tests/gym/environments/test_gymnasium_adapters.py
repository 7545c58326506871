"""State, bounds and texts of each environment that can be saved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym.environments.gymnasium_episode import (
    export_episode,
    import_episode,
)
from tests.gym.environments.test_gymnasium_episode import CASES, PLAYABLE, STEPS, begun, played


def way_to_passenger(environment: Any) -> list[int]:
    """Moves that bring a taxi to its passenger, on a dry day."""
    _, _, passenger, _ = environment.decode(environment.s)
    found: dict[int, list[int]] = {environment.s: []}
    queue = [environment.s]
    while queue:
        state = queue.pop(0)
        if environment.decode(state)[:2] == environment.locs[passenger]:
            return found[state]
        for move in range(4):
            _, reached, _, _ = environment.P[state][move][0]
            if reached not in found:
                found[reached] = [*found[state], move]
                queue.append(reached)
    raise AssertionError("no way")


def test_a_passenger_who_will_change_their_mind_still_does() -> None:
    """Break: leave `fickle_step` out of Taxi's state."""
    changed_mind = 0
    for seed in range(40):
        episode = begun("Taxi-v4", {"fickle_passenger": True}, seed)
        taxi: Any = episode.environment.unwrapped
        for action in [*way_to_passenger(taxi), 4]:
            episode.environment.step(action)
        restored = import_episode(export_episode(episode), PLAYABLE)
        before = taxi.decode(taxi.s)[3]
        assert played(restored, 0, STEPS) == played(episode, 0, STEPS)
        assert export_episode(restored) == export_episode(episode)
        changed_mind += taxi.decode(taxi.s)[3] != before
    assert changed_mind > 3


def test_hands_that_no_deck_deals_are_refused() -> None:
    saved = json.loads(export_episode(begun("Blackjack-v1", {}, 3)))
    for hand in ([], [1], [0, 5], [11, 5], [1.5, 5], ["1", 5], [1] * 23):
        saved["state"]["player"] = hand
        with pytest.raises(ValueError):
            import_episode(json.dumps(saved).encode(), PLAYABLE)


def test_marked_places_are_shown_without_colours() -> None:
    """Break: expect one colour around a place in `_COLOURED`."""
    for seed in range(20):
        for name, options in CASES:
            episode = begun(name, options, seed)
            text = "".join(step[0] for step in played(episode, 0, 6))
            assert "\x1b" not in text
            assert text.strip()
