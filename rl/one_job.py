"""One job per Ray cluster: TransferQueue's actor names are fixed (design section 2)."""

from __future__ import annotations

from rl.errors import OtherJob


def refuse_other_job(job_id: str, found: str | None) -> None:
    """Refuse a cluster that holds another job.

    Args:
        job_id: Who wants to use the cluster.
        found: Whose actors are there; None: nobody's.

    Raises:
        OtherJob: Both jobs are named.
    """
    if found is not None and found != job_id:
        raise OtherJob(
            f"this Ray cluster holds job {found!r}, and one holds one job: end that one with its "
            f"cluster (`turnpoint down`), or use another for {job_id!r}",
            participant=found,
        )
