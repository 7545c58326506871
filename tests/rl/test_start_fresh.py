"""A fresh start that is refused: nothing is claimed and nobody ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import Kind
from rl import job
from rl.errors import DatasetInvalid
from rl.messages import ServerConfig, Workload
from tests.rl.fakes import AGENT, config


async def test_rows_for_another_agent_are_refused_before_anything_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: leave it to the controller; the old line has ended by then."""

    async def nobody(_: Any) -> None:
        return None

    async def ended() -> None:
        raise AssertionError("the job that was there was ended")

    monkeypatch.setattr(job, "alive_here", nobody)
    monkeypatch.setattr(job, "kill_actors", ended)
    rows = tmp_path / "rows.jsonl"
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "gone"}}
    rows.write_text(json.dumps(row) + "\n")
    agent = ServerConfig(name=AGENT, kind=Kind.AGENT, url="http://127.0.0.1:1")
    settings = config(tmp_path, servers=[agent])
    async with GymClient(SecretStr("t" * 40)) as client:
        with pytest.raises(DatasetInvalid, match=f"jsonl:1: .*'gone'.*{AGENT}"):
            await job.start_fresh(settings, Workload(dataset=rows), {"run_id": "one"}, client)
    assert not settings.job_folder.exists()
