"""`PruneSnapshots`: keep the newest, never inside a pause (design section 4, step 6)."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from activities.contract import Progress, PruneInput, PruneResult

from workflows.failures import parsed, reason_of, was_cancelled
from workflows.journal import Journal
from workflows.options import ON_DISK


@workflow.defn(name="PruneSnapshots")
class PruneSnapshots:
    """Deletes snapshots of the current line that no restore needs any more."""

    def __init__(self) -> None:
        self._journal = Journal(["prune_snapshots"])

    @workflow.query
    def progress(self) -> Progress:
        """The workflow's one phase, while it runs and afterwards."""
        return Progress(phase=self._journal.current, done=self._journal.done)

    @workflow.run
    async def run(self, given: Any = None) -> PruneResult:
        """Prune once. `given` is a `PruneInput` as a JSON object."""
        prune = parsed(PruneInput, given)
        try:
            return await self._journal.run("prune_snapshots", prune, PruneResult, ON_DISK)
        except ActivityError as error:
            if was_cancelled(error):
                raise
            raise reason_of(error) from None
