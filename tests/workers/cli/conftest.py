"""Fixtures of the command line's tests: a clean environment, an ended stack, looks into Ray."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from workers.cli import supervised_run
from workers.job import commands as job_runs
from workers.job.cluster_view import ClusterView
from workers.stack.record import StackRecord


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
    monkeypatch.setattr(supervised_run, "JobWatch", Watch)
    monkeypatch.setattr(job_runs, "begin", begin)
    return looks


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TURNPOINT_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ended_stack(tmp_path: Path) -> Path:
    """The state folder of a stack that ran once and is down."""
    state = tmp_path / "state"
    state.mkdir()
    servers = [{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:26901"}]
    record = StackRecord(
        stack_id="none",
        settings={
            "state_dir": str(state),
            "servers": servers,
            "policy_url": "http://127.0.0.1:26902/v1",
            "generation_port": 26903,
            "temporal_address": "127.0.0.1:26904",
        },
        ports={},
        ray_folder=tmp_path / "ray",
        expect_restore=False,
        ray_address=None,
        temporal_ui=None,
    )
    (state / "stack.json").write_text(record.model_dump_json())
    (state / "logs").mkdir()
    (state / "logs" / "counter.log").write_text("first\nlast\n")
    return state
