"""The job's configuration: names and URLs of servers are distinct, unknown fields are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from rl.config import JobConfig, SaveSettings, ServerConfig
from tests.rl.fakes import config

URL = "http://127.0.0.1:23001"


def _server(name: str, url: str = URL) -> ServerConfig:
    return ServerConfig(name=name, kind="resource", url=url)


def _read(tmp_path: Path, *servers: ServerConfig) -> JobConfig:
    return JobConfig.model_validate(config(tmp_path).model_dump() | {"servers": list(servers)})


def test_the_snapshots_lie_in_the_jobs_folder(tmp_path: Path) -> None:
    assert config(tmp_path).job_folder == tmp_path / "job"


def test_two_servers_of_one_name_or_one_url_are_refused(tmp_path: Path) -> None:
    """Break: rl/config.py: compare URLs as they are written."""
    _read(tmp_path, _server("counter"), _server("tools", "http://127.0.0.1:23002"))
    with pytest.raises(ValidationError, match="two servers have the name counter"):
        _read(tmp_path, _server("counter"), _server("counter", "http://127.0.0.1:23002"))
    with pytest.raises(ValidationError, match="one url under two names: counter and tools"):
        _read(tmp_path, _server("counter"), _server("tools", URL + "/"))


@pytest.mark.parametrize(
    "change", [{"job_id": "../job"}, {"unknown": 1}, {"generation_port": 0}, {"max_runs": 0}]
)
def test_values_that_no_job_can_have_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JobConfig.model_validate(config(tmp_path).model_dump() | change)
    with pytest.raises(ValidationError):
        SaveSettings(keep_latest_k=0)
