"""The Ray head: on loopback, with ports and a short folder of its own."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from workers.stack import ray_head


def test_the_head_listens_on_loopback_and_imports_nothing_of_the_current_folder() -> None:
    line = ray_head.command(1, client_port=2, agent_port=3, cpus=16, folder=Path("/r"))
    assert line[:4] == [sys.executable, "-P", "-m", "ray.scripts.scripts"]
    flags = dict(itertools.pairwise(line))
    assert flags["--node-ip-address"] == "127.0.0.1"
    assert (flags["--port"], flags["--ray-client-server-port"]) == ("1", "2")
    assert flags["--dashboard-agent-listen-port"] == "3"
    assert flags["--include-dashboard"] == "false"


def test_a_driver_joins_this_cluster_and_no_other() -> None:
    env = ray_head.environment("127.0.0.1:1")
    assert env["RAY_ADDRESS"] == "127.0.0.1:1"
    assert env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_the_folder_is_short_and_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = ray_head.temp_dir("0123456789abcdef")
    assert folder == tmp_path / "turnpoint-01234567"
    ray_head.remove_temp_dir(folder)  # one that is not there is no error
    (folder / "session").mkdir(parents=True)
    ray_head.remove_temp_dir(folder)
    assert not folder.exists()
