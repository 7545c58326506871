"""`SaveSnapshot` with prepare and commit swapped: what the replay tests must find."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from workflows import save_snapshot

SWAPPED = {
    "prepare_checkpoint": "commit_checkpoint",
    "commit_checkpoint": "prepare_checkpoint",
}


@workflow.defn(name="SaveSnapshot")
class SaveSnapshot(save_snapshot.SaveSnapshot):
    """Commits before it prepares."""

    @workflow.run
    async def run(self, given: Any = None) -> Any:
        """The original's body; only the names of two of its rows are swapped."""
        return await super().run(given)

    async def _row(self, phase: str, request: Any, result_type: Any) -> Any:
        return await super()._row(SWAPPED.get(phase, phase), request, result_type)
