"""Shared by all tests: a Temporal dev server, and the order in which real tests begin."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from workflows.journal import SEARCH_ATTRIBUTES

# Ray reads these when it is imported. Without the first it replaces 127.0.0.1 by the machine's
# own address, and listens there.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

FIRST = (
    "tests/rl/scenarios/test_snapshot_crash.py",  # it forks: before Ray has threads in its process
    "tests/faults/test_save_faults.py",
    "tests/real/test_supervision.py",
    "tests/real/test_misuse.py",
    "tests/real/test_snapshots_over_time.py",
    "tests/real/test_states.py",
    "tests/real/test_story.py",
    "tests/twin/test_twin.py",
    "tests/rl/policies/test_vllm.py",
)
"""Files that begin first. Most are files of minutes: two workers share the real tests, file by
file, and a long one that begins last would run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files of `FIRST` begin first."""
    ranks = {file: rank for rank, file in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client of a dev server that this test process starts."""
    binary = Path(sys.executable).parent / "temporal"
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(binary),
        data_converter=pydantic_data_converter,
        search_attributes=list(SEARCH_ATTRIBUTES),
        dev_server_log_level="error",
        dev_server_extra_args=[
            "--dynamic-config-value",
            "history.transferProcessorMaxPollRPS=2000",
        ],
    ) as environment:
        yield environment.client
