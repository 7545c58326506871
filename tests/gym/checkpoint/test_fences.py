"""Fences: older runs are refused, and the first call of a newer one is told."""

from __future__ import annotations

import pytest

from gym.checkpoint.fences import Fences
from gym.protocol import Identity, StaleAttempt


def test_fences_refuse_older_runs_and_tell_the_first_call_of_a_newer_one() -> None:
    fences = Fences()

    def run(attempt: int) -> Identity:
        return Identity(incarnation=1, rollout_id="p0_g0", attempt=attempt)

    assert not fences.admit(run(1))
    assert not fences.admit(run(1))
    with pytest.raises(StaleAttempt):
        fences.admit(run(0))
    assert fences.admit(run(3))
    assert not fences.admit(run(3))
    fences.raise_to("p0_g0", 2)
    assert fences.newest("p0_g0") == 3
    fences.require_current(run(9))
    assert fences.newest("p0_g0") == 3
    fences.forget(["p0_g0", "never-seen"])
    assert not fences.admit(run(0))
