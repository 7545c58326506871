"""`PruneSnapshots`: keep the newest, never inside a pause (design section 4, step 6)."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from activities.contract import PruneInput, PruneResult

from workflows.journal import parsed
from workflows.options import ON_DISK


@workflow.defn(name="PruneSnapshots")
class PruneSnapshots:
    """Deletes snapshots of the current line that nothing needs any more."""

    @workflow.run
    async def run(self, given: Any = None) -> PruneResult:
        """Prune once. `given` is a `PruneInput` as a JSON object."""
        prune = parsed(PruneInput, given)
        result: PruneResult = await workflow.execute_activity(
            "prune_snapshots", prune, result_type=PruneResult, **ON_DISK
        )
        return result
