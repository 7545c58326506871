"""Snapshot and fleet must fit: each entry that differs is listed, old and new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym.protocol import Mode
from rl.errors import TopologyMismatch
from rl.messages import JoinedServer, Topology
from rl.snapshots.topology import require_fit, topology_of
from tests.rl.fakes import COUNTER, config, servers


def _topology(root: Path, fleet: list[JoinedServer] | None = None, **changes: Any) -> Topology:
    return topology_of(config(root, **changes), fleet or servers(), {"epochs": 1})


def test_urls_instances_and_the_order_of_servers_may_differ(tmp_path: Path) -> None:
    other = [
        server.model_copy(update={"url": "http://127.0.0.1:9", "instance_id": "another"})
        for server in reversed(servers())
    ]
    require_fit(_topology(tmp_path), _topology(tmp_path, other), snapshot="snapshot_000001")


def test_each_difference_is_listed_old_and_new(tmp_path: Path) -> None:
    """Break: rl/snapshots/topology.py: leave the servers' modes out."""
    fleet = servers(Mode.RESTART_ONLY)
    fleet[-1] = fleet[-1].model_copy(update={"schema_versions": [2]})
    found = _topology(tmp_path, fleet, storage_units=3)
    with pytest.raises(TopologyMismatch) as refused:
        require_fit(_topology(tmp_path), found, snapshot="snapshot_000001")
    assert refused.value.participant == "snapshot_000001"
    assert refused.value.details["differences"] == [
        f"servers.{COUNTER}.mode: export_restore -> restart_only",
        f"servers.{COUNTER}.schema_versions: [1] -> [2]",
        "storage_units: 1 -> 3",
    ]


def test_a_server_that_is_missing_is_absent(tmp_path: Path) -> None:
    with pytest.raises(TopologyMismatch, match=f"servers.{COUNTER}.kind: resource -> absent"):
        require_fit(_topology(tmp_path), _topology(tmp_path, servers()[:-1]), snapshot="s")


def test_the_meaning_of_a_rollout_is_compared_elsewhere(tmp_path: Path) -> None:
    other = _topology(tmp_path).model_copy(update={"semantic": {"epochs": 2}})
    require_fit(_topology(tmp_path), other, snapshot="snapshot_000001")
