"""A server that is run as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gym.server.test_one_process import Workers


@pytest.mark.real
def test_web_concurrency_ends_a_server_with_one_typed_line(tmp_path: Path) -> None:
    """Break: leave it to uvicorn, which asks for an import string."""
    workers = Workers(tmp_path)
    with workers.started("gym.environments.counter", WEB_CONCURRENCY="2") as process:
        assert process.wait(30) == 2
    (line,) = workers.log.read_text().splitlines()
    assert '"code": "more_than_one_process"' in line
    assert "WEB_CONCURRENCY asks for more than one process of counter" in line
