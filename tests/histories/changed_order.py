"""`SaveSnapshot` with prepare and commit swapped: what the replay tests must find."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalio import workflow

from workflows import save_snapshot


@workflow.defn(name="SaveSnapshot")
class SaveSnapshot(save_snapshot.SaveSnapshot):
    """Commits before it prepares."""

    @workflow.run
    async def run(self, given: Any = None) -> Any:
        """The original's body; only what two of its steps call is swapped."""
        return await super().run(given)

    async def _prepare_checkpoint(self, deadline: datetime) -> Any:
        return await super()._commit_checkpoint(deadline)

    async def _commit_checkpoint(self, deadline: datetime) -> Any:
        return await super()._prepare_checkpoint(deadline)
