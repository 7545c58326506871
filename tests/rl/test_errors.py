"""The tree of errors: shown whole at the top of its file, each survives pickle."""

from __future__ import annotations

import pickle

from gym.protocol import TurnpointError
from rl import errors


def _leaves() -> list[type[TurnpointError]]:
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    return [
        kind for kind in found if issubclass(kind, TurnpointError) and not kind.__subclasses__()
    ]


def test_the_tree_names_every_error_with_its_code() -> None:
    """Break: rl/errors.py: leave an error out of the tree, or give two the same code."""
    assert errors.__doc__ is not None
    for kind in _leaves():
        assert f"─ {kind.__name__} " in errors.__doc__ and f" {kind.code}: " in errors.__doc__
    codes = [kind.code for kind in _leaves()]
    assert len(set(codes)) == len(codes) > 20


def test_every_error_survives_pickle() -> None:
    for kind in _leaves():
        error = kind("x", participant="counter", details={"servers": {"counter": "open"}})
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (str(again), again.details) == (str(error), error.details)
        assert (again.participant, again.retryable) == ("counter", kind.retryable)
