"""What several rooms' tests share: a real Temporal dev server of this test run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from workflows.journal import SEARCH_ATTRIBUTES


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client of a dev server of this test run."""
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
