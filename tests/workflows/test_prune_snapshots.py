"""`PruneSnapshots` against the real Temporal server."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.contract import Progress, PruneInput, PruneResult
from tests.workflows.conftest import Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


async def test_other_lines_are_asked_for_by_the_input_and_the_phase_is_shown(bench: Bench) -> None:
    given = PruneInput(job_id="demo", keep_latest_k=1, other_lines=True)
    handle = await bench.start("PruneSnapshots", given)
    result = PruneResult.model_validate(await handle.result())
    assert result.removed == ["snapshot_000000"]
    assert bench.fakes.requests["prune_snapshots"] == given
    progress = Progress.model_validate(await handle.query("progress"))
    assert progress.phase is None
    assert [done.phase for done in progress.done] == ["prune_snapshots"]


async def test_it_fails_with_the_activitys_own_type_and_sentence(bench: Bench) -> None:
    """Break: let the ActivityError rise, and the command line says `ActivityError`."""
    bench.fakes.fail["prune_snapshots"] = [
        ApplicationError("no line yet", type="restore_not_finished", non_retryable=True)
    ]
    handle = await bench.start("PruneSnapshots", PruneInput(job_id="demo"))
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == ("restore_not_finished", "no line yet")
