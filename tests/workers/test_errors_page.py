"""`docs/errors.md`: each row's codes exist, and the test that shows it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rl.errors
from gym.protocol import TurnpointError
from workers import errors
from workers.job_runs import REFUSALS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|") and "::" in line
]


def _codes(kind: type[TurnpointError] | type[errors.WorkerRoomError]) -> set[str]:
    return {kind.code}.union(*(_codes(sub) for sub in kind.__subclasses__()))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_codes_and_a_test_that_exist(row: list[str]) -> None:
    known = _codes(TurnpointError) | _codes(errors.WorkerRoomError) | REFUSALS
    known |= {"temporal_refused"}
    assert rl.errors.JobError.code in known
    named = set(re.findall(r"`([a-z_]+)`", row[1])) - {"skipped"}
    assert named and named <= known
    path, _, name = row[-1].strip("`").partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_the_page_is_a_table_and_the_readme_leads_there() -> None:
    assert len(ROWS) > 35
    assert all(len(row) == 5 for row in ROWS)
    assert "docs/errors.md" in (ROOT / "README.md").read_text()
