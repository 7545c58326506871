"""A workflow of one activity, for the tests of `driving`."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy


@workflow.defn
class DriveOnce:
    """Runs the activity `driven`, once by default."""

    @workflow.run
    async def run(self, budget_s: float, tries: int = 1) -> float:
        """The activity's answer."""
        deadline = workflow.now() + timedelta(seconds=budget_s)
        answer: float = await workflow.execute_activity(
            "driven",
            deadline.isoformat(),
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(maximum_attempts=tries),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return answer
