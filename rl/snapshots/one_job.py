"""Checks before a start: one job per Ray cluster, one life per job (design sections 2 and 5)."""

from __future__ import annotations

from pathlib import Path

from rl.errors import OtherJob
from rl.messages import ControllerStatus, JobPhase
from rl.snapshots import incarnations


def require_no_other_job(job_id: str, found: str | None) -> None:
    """Refuse a cluster that holds another job.

    Args:
        job_id: Who wants to use the cluster.
        found: The job whose actors are there; None: no job's.

    Raises:
        OtherJob: Both jobs are named.
    """
    if found is not None and found != job_id:
        raise OtherJob(
            f"this Ray cluster holds job {found!r}, and one holds one job: end that one with its "
            f"cluster (`turnpoint down`), or use another for {job_id!r}",
            participant=found,
        )


def blocks_start(job_folder: Path, status: ControllerStatus) -> bool:
    """True if a job must not be started or restored while this controller answers.

    False if the job is over, or if it can never begin: `turnpoint run` has died before it had
    started everything. A restore that is under way counts as alive: its workflow completes it.
    """
    if status.state is JobPhase.STARTING:
        return "workflow_id" in incarnations.owner(job_folder, status.incarnation)
    return not status.state.is_over
