"""`docs/errors.md`: each row's codes exist, and the test that shows it does."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import activities
import gym
import rl
import workers
import workflows
from gym.protocol import TurnpointError
from workers import errors
from workers.job.commands import REFUSALS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|") and "::" in line
]


NO_ROW = {
    "protocol_error": "a branch of the tree; only its leaves are raised",
    "job_error": "a branch of the tree",
    "fleet_error": "a branch of the tree",
    "state_error": "a branch of the tree",
    "failed": "the root of the command line's errors; others carry the code of what failed",
    "not_implemented": "acknowledge at another server than an agent, where its route is not there",
    "origin_conflict": "two restores under one incarnation, which is claimed by one of them alone",
    "weights_syncing": "there is no trainer that syncs weights yet",
}
"""Codes that no user meets, each with the reason."""
OUTSIDE_THE_TREES = {"cancelled", "os_error", "terminated", "usage"}
"""Codes of the command line without a class of their own."""
BASES = (TurnpointError, errors.WorkerRoomError)


def _all_modules() -> None:
    """Import every module of the product: an error class may stand in any."""
    for room in (activities, gym, rl, workers, workflows):
        for found in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def _codes(kind: type[TurnpointError] | type[errors.WorkerRoomError]) -> set[str]:
    """Codes below a class, but for those that tests have added."""
    own = set() if kind.__module__.startswith("tests.") else {kind.code}
    return own.union(*(_codes(sub) for sub in kind.__subclasses__()))


def _known() -> set[str]:
    _all_modules()
    return set().union(*map(_codes, BASES)) | REFUSALS | OUTSIDE_THE_TREES


def _named(row: list[str]) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", row[1])) - {"skipped", "run"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_codes_and_a_test_that_exist(row: list[str]) -> None:
    assert _named(row) and _named(row) <= _known()
    path, _, name = row[-1].strip("`").partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_code_has_a_row_or_a_reason_why_not() -> None:
    """Break: add an error class with a code of its own, and no row."""
    on_the_page = set().union(*map(_named, ROWS))
    assert _known() - on_the_page == set(NO_ROW)


def test_the_page_is_a_table_and_the_readme_leads_there() -> None:
    assert len(ROWS) > 70
    assert all(len(row) == 5 for row in ROWS)
    assert "docs/errors.md" in (ROOT / "README.md").read_text()
