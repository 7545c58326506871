"""A server that is run as a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI

from gym.server.serve import serve
from tests.gym.parts import settings
from tests.gym.server.test_one_process import Workers


def test_one_worker_is_served_and_two_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: gym/server/serve.py: leave `require_one_worker` out."""
    served: list[dict[str, object]] = []
    monkeypatch.setattr("gym.server.serve.configure_logging", lambda name: None)
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.append(options))
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    serve(FastAPI(), settings(tmp_path))
    assert [(options["port"], options["workers"]) for options in served] == [(21_999, 1)]
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    with pytest.raises(SystemExit) as ended:
        serve(FastAPI(), settings(tmp_path))
    assert (ended.value.code, len(served)) == (2, 1)


@pytest.mark.real
def test_web_concurrency_ends_a_server_with_one_typed_line(tmp_path: Path) -> None:
    """Break: leave it to uvicorn, which asks for an import string."""
    workers = Workers(tmp_path)
    with workers.started("gym.environments.counter", WEB_CONCURRENCY="2") as process:
        assert process.wait(30) == 2
    (line,) = workers.log.read_text().splitlines()
    assert '"code": "more_than_one_process"' in line
    assert "WEB_CONCURRENCY asks for more than one process of counter" in line
