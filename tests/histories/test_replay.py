"""Old histories replay (invariant 13).

The files are histories of real runs, one for each outcome; `python -m tests.histories.record`
records them anew, from a local stack, in two minutes.
Deliberate break: swapping prepare and commit in `SaveSnapshot.run` turns these tests red, as
`test_a_changed_order_is_found` shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.histories import changed_order
from workflows import WORKFLOWS

FOLDER = Path(__file__).parent
HISTORIES = sorted(FOLDER.glob("*/*.json"))
OUTCOMES = {
    "SaveSnapshot/published",
    "SaveSnapshot/cancelled",
    "SaveSnapshot/failed",
    "SaveSnapshot/skipped",
    "RestoreSnapshot/restored",
    "RestoreSnapshot/failed",
    "RestoreSnapshot/fell_back",
    "PruneSnapshots/pruned",
}


def test_every_outcome_has_a_history() -> None:
    found = {str(path.relative_to(FOLDER).with_suffix("")) for path in HISTORIES}
    assert found >= OUTCOMES


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_a_history_replays(path: Path) -> None:
    """Invariant 13. Break: workflows/save_snapshot.py: prepare before the admission; seen red."""
    replayer = Replayer(workflows=WORKFLOWS, data_converter=pydantic_data_converter)
    await replayer.replay_workflow(_history(path))


def _history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


async def test_a_changed_order_is_found() -> None:
    path = FOLDER / "SaveSnapshot" / "published.json"
    replayer = Replayer(
        workflows=[changed_order.SaveSnapshot], data_converter=pydantic_data_converter
    )
    with pytest.raises(workflow.NondeterminismError):
        await replayer.replay_workflow(_history(path))
