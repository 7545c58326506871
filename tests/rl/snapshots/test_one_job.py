"""One job per Ray cluster, one life per job."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.errors import OtherJob
from rl.messages import JobPhase
from rl.snapshots import incarnations
from rl.snapshots.one_job import blocks_start, require_no_other_job
from tests.workers.observations import status


def test_a_cluster_of_another_job_is_refused_with_both_named() -> None:
    require_no_other_job("job", None)
    require_no_other_job("job", "job")
    with pytest.raises(OtherJob, match=r"'other'.*'job'"):
        require_no_other_job("job", "other")


@pytest.mark.parametrize(
    ("phase", "owner", "blocks"),
    [
        (JobPhase.RUNNING, {}, True),
        (JobPhase.RESTORED, {}, True),
        (JobPhase.FINISHED, {}, False),
        (JobPhase.FAILED, {}, False),
        (JobPhase.STARTING, {"workflow_id": "job/restore"}, True),
        (JobPhase.STARTING, {}, False),
    ],
)
def test_a_life_blocks_a_start_unless_it_is_over_or_its_own_start_has_died(
    tmp_path: Path, phase: JobPhase, owner: dict[str, str], blocks: bool
) -> None:
    incarnations.claim(tmp_path, {"run_id": "run", **owner})
    assert blocks_start(tmp_path, status(phase, incarnation=1)) is blocks
