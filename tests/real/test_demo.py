"""Contents of the demo's report (issue 2, point 1). `make test` runs the demo before this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
REPORT = Path(__file__).parents[2] / "build" / "demo" / "report.json"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The last run's report."""
    assert REPORT.exists(), "no report: run `make demo` first"
    found: dict[str, Any] = json.loads(REPORT.read_text())
    return found


def test_the_report_has_exactly_the_promised_keys(report: dict[str, Any]) -> None:
    assert set(report) == {
        *("rollouts", "finished", "unfinished_at_save", "continued", "restarted", "turns_saved"),
        *("mutations_repeated", "training_rows", "rows_expected", "duplicate_rows", "pause_s"),
        *("pause_by_phase", "restore_s", "snapshot", "workflows"),
    }


def test_every_unfinished_rollout_continued_and_every_rollout_finished_once(
    report: dict[str, Any],
) -> None:
    assert report["rollouts"] >= 8
    assert report["unfinished_at_save"] >= 6
    assert report["continued"] == report["unfinished_at_save"]
    assert report["restarted"] == 0
    assert report["finished"] == report["rollouts"]
    assert report["turns_saved"] >= 2 * report["continued"]


def test_nothing_happened_twice_and_no_row_is_missing(report: dict[str, Any]) -> None:
    assert report["mutations_repeated"] == 0
    assert report["duplicate_rows"] == 0
    assert report["training_rows"] == report["rows_expected"] == report["rollouts"]


def test_the_pause_is_reported_by_phase(report: dict[str, Any]) -> None:
    assert 0 < report["pause_s"] < 60
    phases = report["pause_by_phase"]
    assert {"prepare_checkpoint", "commit_checkpoint", "cut_rl_state"} <= set(phases)
    assert report["restore_s"] > 0
