"""Which phases of a workflow a person is shown."""

from __future__ import annotations

import pytest

from activities.contract import PhaseReport, Progress
from workers.cli.output import Output
from workers.cli.progress import ProgressView

UNDONE = ["unpublish_snapshot", "resume_checkpoint"]


def _printed(capsys: pytest.CaptureFixture[str], *phases: str) -> list[str]:
    done = [PhaseReport(phase=phase, ms=0) for phase in phases]
    with ProgressView(Output(as_json=False)) as view:
        for number in range(len(done) + 1):
            view.on_progress(Progress(phase=None, done=done[:number]))
    return [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]


def test_a_save_that_never_began_shows_no_undoing(capsys: pytest.CaptureFixture[str]) -> None:
    """Break: print every phase; `save` without a job says it has resumed a checkpoint."""
    assert _printed(capsys, *UNDONE) == []


def test_the_undoing_of_a_save_that_began_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    phases = ["begin_checkpoint", "close_admission", *UNDONE]
    assert _printed(capsys, *phases) == phases
