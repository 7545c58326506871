"""Environments of the package `gymnasium`: saved, restored elsewhere, and the same afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from gym.environments.gymnasium_adapters import ADAPTERS
from gym.environments.gymnasium_episode import (
    Episode,
    can_be_saved,
    export_episode,
    import_episode,
    make,
)
from gym.environments.gymnasium_server import DEFAULT_ENVIRONMENTS

PLAYABLE = frozenset(ADAPTERS)


CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ADAPTERS),
    ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
    ("FrozenLake-v1", {"map_name": "8x8", "success_rate": 0.8}),
    ("FrozenLake-v1", {"is_slippery": False, "max_episode_steps": 9}),
    ("CliffWalking-v1", {"is_slippery": True, "max_episode_steps": 12}),
    ("Blackjack-v1", {"natural": True, "sab": False}),
]
"""Slippery ground, rain, passengers who change their mind and cards draw at random."""


STEPS = 14


def played(episode: Episode, first: int, steps: int) -> list[Any]:
    """Answers of the steps `first`, `first + 1` ...; an episode that is over begins anew."""
    actions = episode.environment.action_space.n  # type: ignore[attr-defined]
    found: list[Any] = []
    for step in range(first, first + steps):
        if episode.over:
            episode.environment.reset()
            episode.over = False
        # Hits first, as a hand that stands draws for the dealer alone.
        action = (step * step + 1) % actions
        observation, reward, terminated, truncated, info = episode.environment.step(action)
        episode.over = terminated or truncated
        shown = episode.show(observation)
        numbers = {key: str(value) for key, value in info.items()}
        found.append([shown, float(reward), bool(terminated), bool(truncated), numbers])
    return found


def begun(name: str, options: dict[str, Any], seed: int) -> Episode:
    episode = make(name, options)
    episode.environment.reset(seed=seed)
    return episode


PLAYER = """
import json, sys
from {test} import PLAYABLE, STEPS, played
from gym.environments.gymnasium_episode import export_episode, import_episode
for line in sys.stdin:
    answers = []
    for data, first in json.loads(line):
        episode = import_episode(data.encode(), PLAYABLE)
        steps = played(episode, first, STEPS)
        answers.append([steps, export_episode(episode).decode()])
    print(json.dumps(answers), flush=True)
"""


PlayElsewhere = Callable[[list[tuple[bytes, int]]], list[Any]]


@pytest.fixture(scope="module")
def play_elsewhere() -> Iterator[PlayElsewhere]:
    """Have another process play the next steps of saved episodes and save them again."""
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYER.format(test=__name__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:

        def play(saved: list[tuple[bytes, int]]) -> list[Any]:
            episodes = [[data.decode(), first] for data, first in saved]
            print(json.dumps(episodes), file=process.stdin, flush=True)
            found: list[Any] = json.loads(process.stdout.readline())
            return found

        yield play
        process.stdin.close()


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_another_process_goes_on_as_if_nothing_had_happened(
    name: str, options: dict[str, Any], play_elsewhere: PlayElsewhere
) -> None:
    """Operation for operation, random draws included.

    Break: leave `has_uint32` out of `_generator`, or `_elapsed_steps` as it is after a reset.
    """
    saved, expected = [], []
    for seed in range(4):
        for k in range(6):
            episode = begun(name, options, seed)
            played(episode, 0, k)
            saved.append((export_episode(episode), k))
            steps = played(episode, k, STEPS)
            expected.append([steps, export_episode(episode).decode()])
    assert json.loads(json.dumps(expected)) == play_elsewhere(saved)


def test_the_cases_meet_random_draws_and_both_ends() -> None:
    """The equivalence above compares enough: seeds differ, episodes end, limits truncate."""
    for name, options in CASES:
        different = {json.dumps(played(begun(name, options, seed), 0, 30)) for seed in range(12)}
        draws = name not in ("CliffWalking-v1",) or options.get("is_slippery")
        still = name == "FrozenLake-v1" and options.get("is_slippery") is False
        assert (len(different) > 1) is (bool(draws) and not still), (name, options)
    ends = [
        tuple(step[2:4])
        for name, options in CASES
        for step in played(begun(name, options, 1), 0, 30)
    ]
    assert {(True, False), (False, True), (False, False)} <= set(ends)


def test_an_episode_that_is_over_stays_over() -> None:
    episode = begun("Blackjack-v1", {}, 1)
    episode.environment.step(0)
    episode.over = True
    assert import_episode(export_episode(episode), PLAYABLE).over


def changed(**fields: Any) -> bytes:
    """A saved FrozenLake episode with some fields replaced; dots lead into objects."""
    episode = begun("FrozenLake-v1", {}, 3)
    played(episode, 0, 2)
    saved = json.loads(export_episode(episode))
    for path, value in fields.items():
        *outer, last = path.split("__")
        place = saved
        for name in outer:
            place = place[name]
        place[last] = value
    return json.dumps(saved).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x07.",
        b"[]",
        changed(schema_version=2),
        changed(environment="Taxi-v4"),
        changed(environment="CartPole-v1"),
        changed(environment="os:system"),
        changed(options={"desc": ["SG"]}),
        changed(options={"render_mode": "human"}),
        changed(options={"map_name": "4x4", "is_slippery": "no"}),
        changed(over="no"),
        changed(state__s=16),
        changed(state__s=-1),
        changed(state__s=1.0),
        changed(state__lastaction=4),
        changed(state={"s": 3}),
        changed(state__more=1),
        changed(elapsed_steps=None),
        changed(elapsed_steps=-1),
        changed(elapsed_steps=100),
        changed(has_reset=False),
        changed(seed="x"),
        changed(generator__bit_generator="MT19937"),
        changed(generator__state="9" * 39),
        changed(generator__inc="2"),
        changed(generator__inc=3),
        changed(generator__has_uint32=2),
        changed(generator__uinteger=2**32),
        changed(unknown=1),
    ],
)
def test_anything_else_than_a_saved_episode_is_refused(data: bytes) -> None:
    """Break: drop `possible`, `strict` or one of the bounds."""
    with pytest.raises((ValueError, gymnasium.error.Error)):
        import_episode(data, PLAYABLE)


def test_only_what_a_server_plays_is_made() -> None:
    saved = export_episode(begun("FrozenLake-v1", {}, 3))
    with pytest.raises(ValueError):
        import_episode(saved, frozenset({"Taxi-v4"}))


def test_an_environment_without_an_adapter_cannot_be_saved() -> None:
    assert all(can_be_saved(name) for name in ADAPTERS)
    assert set(DEFAULT_ENVIRONMENTS) <= PLAYABLE
    assert not can_be_saved("CartPole-v1")
    with pytest.raises(gymnasium.error.Error):
        can_be_saved("NoSuchEnvironment-v0")


def test_the_package_gymnasium_brings_no_package_gym() -> None:
    """`gym` is this project's folder: the retired package of that name must never be imported."""
    probe = "import gymnasium, sys; print([m for m in sys.modules if m.split('.')[0] == 'gym'])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", probe],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert Path(sys.modules["gym"].__path__[0]).joinpath("protocol").is_dir()
