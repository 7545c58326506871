"""`PruneSnapshots`: keep the newest, never inside a pause (design section 4, step 6)."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from activities.contract import PhaseReport, Progress, PruneInput, PruneResult

from workflows.journal import Journal, parsed, reason_of, was_cancelled
from workflows.options import ON_DISK


@workflow.defn(name="PruneSnapshots")
class PruneSnapshots:
    """Deletes snapshots of the current line that nothing needs any more."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self._journal = Journal(["prune_snapshots"])

    @workflow.query
    def progress(self) -> Progress:
        """Its one phase, while it runs and afterwards."""
        return Progress(phase=self._journal.current, done=self._journal.done)

    @workflow.run
    async def run(self, given: Any = None) -> PruneResult:
        """Prune once. `given` is a `PruneInput` as a JSON object."""
        prune = parsed(PruneInput, given)
        self._journal.enter("prune_snapshots")
        started = workflow.now()
        try:
            result: PruneResult = await workflow.execute_activity(
                "prune_snapshots", prune, result_type=PruneResult, **ON_DISK
            )
        except ActivityError as error:
            if was_cancelled(error):
                raise
            raise reason_of(error) from None
        ms = (workflow.now() - started).total_seconds() * 1000
        self._journal.leave(PhaseReport(phase="prune_snapshots", ms=ms))
        return result
