"""Properties that a snapshot and the fleet that loads it must share (design section 8).

Server names, kinds, modes, roles and schema versions, the identity of model and tokenizer, the
number of TransferQueue's storage units and the semantic configuration must be equal; the number
of replicas, ports and instances may differ. A mismatch lists the entries, old and new.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rl.config import JobConfig
from rl.errors import TopologyMismatch
from rl.messages import JoinedServer, Topology

_SERVER_FIELDS = {"name", "kind", "mode", "role", "schema_versions"}


def topology_of(
    config: JobConfig, servers: Iterable[JoinedServer], semantic: dict[str, Any]
) -> Topology:
    """The topology of a running job.

    Args:
        config: The job's configuration.
        servers: The servers that joined.
        semantic: What changes the meaning of a rollout (dataset digest, generations, epochs).
    """
    return Topology(
        servers=[
            server.model_dump(mode="json", include=_SERVER_FIELDS)
            for server in sorted(servers, key=lambda server: server.name)
        ],
        policy_model=config.policy_model,
        policy_sha256=config.policy_sha256,
        storage_units=config.storage_units,
        semantic=semantic,
    )


def require_fit(saved: Topology, found: Topology, *, snapshot: str) -> None:
    """Refuse a snapshot that another fleet has saved.

    The semantic part is not compared here: a restore takes dataset and generations from the
    snapshot itself, and the loader compares the dataset's digest.

    Raises:
        TopologyMismatch: `details["differences"]` has `entry: old -> new` for each that differs.
    """
    old, new = _entries(saved), _entries(found)
    differences = [
        f"{entry}: {old.get(entry, 'absent')} -> {new.get(entry, 'absent')}"
        for entry in sorted(old.keys() | new.keys())
        if old.get(entry) != new.get(entry)
    ]
    if differences:
        raise TopologyMismatch(
            f"another fleet saved it: {'; '.join(differences)}",
            participant=snapshot,
            details={"differences": differences},
        )


def _entries(topology: Topology) -> dict[str, Any]:
    entries: dict[str, Any] = {
        "policy_model": topology.policy_model,
        "policy_sha256": topology.policy_sha256,
        "storage_units": topology.storage_units,
    }
    for server in topology.servers:
        for field, value in server.items():
            if field != "name":
                entries[f"servers.{server['name']}.{field}"] = value
    return entries
