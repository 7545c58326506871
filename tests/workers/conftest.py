"""What tests of the command line share: looks into Ray that are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workers.cli import run as cli_run
from workers.job import commands as job_runs
from workers.job.cluster_view import ClusterView


class Began(Exception):
    """The job was begun: the test has seen enough."""


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ClusterView]:
    """The first look into Ray, to be appended."""
    looks: list[ClusterView] = []

    class Watch:
        def __init__(self, *_: object) -> None:
            pass

        async def __aenter__(self) -> Watch:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def first(self, _: float) -> ClusterView:
            return looks[0]

    async def begin(*_: Any, **__: Any) -> job_runs.Begun:
        raise Began

    monkeypatch.chdir(tmp_path)
    servers = [{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:1"}]
    monkeypatch.setenv("TURNPOINT_SERVERS", json.dumps(servers))
    monkeypatch.setattr(cli_run, "JobWatch", Watch)
    monkeypatch.setattr(job_runs, "begin", begin)
    return looks
