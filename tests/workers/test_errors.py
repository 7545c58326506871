"""Errors of the command line: each has a code, an exit code and a next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers import errors
from workers.errors import WorkerRoomError


def _kinds(kind: type[WorkerRoomError] = WorkerRoomError) -> list[type[WorkerRoomError]]:
    found = [kind] if kind.__module__ == errors.__name__ else []
    return found + [sub for direct in kind.__subclasses__() for sub in _kinds(direct)]


def test_codes_are_unique() -> None:
    """Break: workers/errors.py: leave out the `code` of a new error."""
    codes = [kind.code for kind in _kinds()]
    assert sorted(codes) == sorted(set(codes))


def test_the_tree_in_the_docstring_names_every_error() -> None:
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in _kinds() if kind.__name__ not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("error", "exit_code", "next_step"),
    [
        (errors.no_stack(Path("/state")), 4, "`turnpoint up`"),
        (errors.stack_is_down(Path("/state")), 4, "`turnpoint up` starts it"),
        (errors.FinishedAlready(3), 0, "`turnpoint run --fresh`"),
        (errors.TemporalRefused("NOT_FOUND"), 4, "TEMPORAL_NAMESPACE"),
        (errors.Interrupted("demo/save/x", None), 130, "Temporal UI"),
        (
            errors.Interrupted("demo/save/x", "http://ui"),
            130,
            "http://ui/namespaces/default/workflows/demo%2Fsave%2Fx",
        ),
    ],
)
def test_an_error_names_the_next_step(
    error: WorkerRoomError, exit_code: int, next_step: str
) -> None:
    assert error.exit_code == exit_code
    assert next_step in str(error)
