"""A model server for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gym.model_server import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path, extra_body={"tool_choice": "required", "temperature": 0.3})
    yield made
    await made.http.aclose()
