"""Rollouts that were taken over twice: counted whichever life of the job did it."""

from __future__ import annotations

import pytest

from rl.messages import ControllerStatus, JobPhase
from tests.workers.demo.demo_rows import training_rows
from workers.demo.report import _duplicates


def _end(rows_put: int) -> ControllerStatus:
    return ControllerStatus(
        job_id="demo",
        incarnation=2,
        state=JobPhase.FINISHED,
        admission_open=True,
        checkpoint_id=None,
        lease_left_s=None,
        rollouts=1,
        rollouts_total=1,
        running=0,
        finished=1,
        failed=0,
        owed=0,
        rows_put=rows_put,
        last_snapshot=None,
    )


@pytest.mark.parametrize(
    ("put_before", "put_after", "duplicates"),
    [(0, 1, 0), (1, 0, 0), (0, 2, 1), (2, 0, 1), (1, 1, 1)],
)
def test_a_rollout_taken_over_twice_is_one_whatever_life_did_it(
    put_before: int, put_after: int, duplicates: int
) -> None:
    """TransferQueue shows one row each time. Break: count rows against their rollouts."""
    assert _duplicates(put_before, _end(put_after), training_rows()) == duplicates
