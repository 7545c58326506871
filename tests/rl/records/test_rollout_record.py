"""One rollout's record: its runs are numbered from 0 and only the newest can be under way."""

import pytest
from pydantic import ValidationError

from rl.records.rollout_record import RolloutRecord, Run, RunPhase


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [Run(attempt_index=1, incarnation=1, state=RunPhase.WAITING)],
        [Run(attempt_index=0, incarnation=1, state=RunPhase.SUPERSEDED)],
        [
            Run(attempt_index=0, incarnation=1, state=RunPhase.STARTED),
            Run(attempt_index=1, incarnation=1, state=RunPhase.WAITING),
        ],
        [Run(attempt_index=0, incarnation=1, state=RunPhase.FINISHED)],
    ],
)
def test_runs_that_cannot_be_are_refused(runs: list[Run]) -> None:
    with pytest.raises(ValidationError):
        RolloutRecord(rollout_id="p0_g0", agent="agent", runs=runs)


def test_a_change_that_makes_a_record_inconsistent_is_refused() -> None:
    """Break: rl/records/rollout_record.py: copy without validation."""
    record = RolloutRecord(
        rollout_id="p0_g0",
        agent="agent",
        runs=[Run(attempt_index=0, incarnation=1, state=RunPhase.STARTED)],
    )
    with pytest.raises(ValidationError):
        record.with_run(RunPhase.FINISHED, reward=1.0)  # no digest
    with pytest.raises(ValidationError):
        record.changed(owed=True)
    with pytest.raises(ValidationError):
        record.changed(staging_keys=["1/p0_g0/call-0"] * 2)
    failed = record.with_run(RunPhase.FAILED)
    assert (failed.failed, failed.unfinished, failed.failed_runs) == (True, False, 1)
    assert record.unfinished
