"""A restore takes the newest snapshot that is intact and fits, and names the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.contract.restore import SelectRequest, SelectResult
from activities.folder import FolderActivities
from gym.protocol import Kind, Mode, Role
from rl.config import JobConfig
from rl.errors import (
    NoSnapshot,
    SnapshotDamaged,
    TopologyMismatch,
)
from rl.messages import JoinedServer
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.topology import topology_of
from tests.rl import folder_cases
from tests.rl.folder_cases import save, start_job

THIRD = "ccccdddd-0000-4000-8000-000000000003"
SESSIONS = "gym/counter/sessions.jsonl"
DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "truncated": (SESSIONS, lambda at: (at / SESSIONS).write_bytes(b"{}")),
    "edited": (SESSIONS, lambda at: (at / SESSIONS).write_bytes(b"[]\n")),
    "missing": (SESSIONS, lambda at: (at / SESSIONS).unlink()),
    "extra": ("rl/extra", lambda at: (at / "rl/extra").write_bytes(b"")),
    "symlink": (
        SESSIONS,
        lambda at: (
            (at / SESSIONS).rename(at.parent / "kept"),
            (at / SESSIONS).symlink_to(at.parent / "kept"),
        ),
    ),
    "manifest": ("manifest.json", lambda at: (at / "manifest.json").write_bytes(b"{}")),
    "no manifest": ("manifest.json", lambda at: (at / "manifest.json").unlink()),
    "a link to the older one": (
        ".",
        lambda at: (at.rename(at.parent / "kept"), at.symlink_to("snapshot_000001")),
    ),
    "moved away": (
        ".",
        lambda at: (at.rename(at.parent / "kept"), at.symlink_to(at.parent / "kept")),
    ),
    "a file": (".", lambda at: (at.rename(at.parent / "kept"), at.write_bytes(b""))),
}


async def select(
    config: JobConfig,
    servers: Iterable[JoinedServer] = (),
    *,
    strict: bool = False,
    incarnation: int = 2,
) -> SelectResult:
    activities = FolderActivities(cast(Client, None), config)
    request = SelectRequest(
        job_id=config.job_id,
        incarnation=incarnation,
        restore_id="rs",
        snapshot="latest",
        strict=strict,
        servers=list(servers),
        excluded=[],
        reasons=[],
    )
    found = await ActivityEnvironment().run(activities.select_snapshot, request)
    return cast(SelectResult, found)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_snapshot_gives_way_to_the_older_one_and_its_file_is_named(
    config: JobConfig, damage: str
) -> None:
    """Break: take the first candidate.

    Or rl/snapshots/published.py: say of one that is no folder that there is no such snapshot: the
    restore fails, though an older one is intact.
    """
    file, apply = DAMAGE[damage]
    apply(config.job_folder / "snapshot_000002")
    found = await select(config)
    assert found.snapshot == "snapshot_000001"
    (skipped,) = found.skipped
    assert skipped.startswith(f"snapshot_000002: snapshot_damaged: {file}: ")
    with pytest.raises(SnapshotDamaged) as caught:
        await select(config, strict=True)
    assert caught.value.details["file"] == file


async def test_without_an_intact_one_each_is_named(config: JobConfig) -> None:
    for name in ("snapshot_000001", "snapshot_000002"):
        (config.job_folder / name / SESSIONS).unlink()
    with pytest.raises(NoSnapshot) as caught:
        await select(config)
    assert [reason[:15] for reason in caught.value.details["reasons"]] == [
        "snapshot_000002",
        "snapshot_000001",
    ]


async def test_another_topology_is_listed_by_entry_old_and_new(config: JobConfig) -> None:
    """Break: compare two digests."""
    other = config.model_copy(update={"storage_units": 3, "policy_model": "large"})
    with pytest.raises(TopologyMismatch) as caught:
        await select(other, strict=True)
    assert caught.value.details["differences"] == [
        "policy_model: tiny -> large",
        "storage_units: 1 -> 3",
    ]
    with pytest.raises(NoSnapshot, match="policy_model: tiny -> large"):
        await select(other)


def _joined(name: str, kind: Kind, **more: Any) -> JoinedServer:
    given = {"mode": Mode.EXPORT_RESTORE, "url": "http://127.0.0.1:1", "instance_id": "i", **more}
    return JoinedServer(name=name, kind=kind, **given)


FLEET = {
    "policy_model": _joined("policy_model", Kind.MODEL, role=Role.POLICY),
    "simple_agent": _joined("simple_agent", Kind.AGENT),
    "counter": _joined("counter", Kind.RESOURCE),
}
OTHER_FLEETS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "name": (
        {"counter": {"name": "tally"}},
        {},
        [
            "servers.counter.kind: resource -> absent",
            "servers.counter.mode: export_restore -> absent",
            "servers.counter.schema_versions: [1] -> absent",
            "servers.tally.kind: absent -> resource",
            "servers.tally.mode: absent -> export_restore",
            "servers.tally.schema_versions: absent -> [1]",
        ],
    ),
    "kind": (
        {"counter": {"kind": Kind.AGENT}}, {}, ["servers.counter.kind: resource -> agent"],
    ),
    "mode": (
        {"counter": {"mode": Mode.RESTART_ONLY}},
        {},
        ["servers.counter.mode: export_restore -> restart_only"],
    ),
    "role": (
        {"policy_model": {"role": Role.AUXILIARY}},
        {},
        ["servers.policy_model.role: policy -> auxiliary"],
    ),
    "schema version": (
        {"simple_agent": {"schema_versions": [2]}},
        {},
        ["servers.simple_agent.schema_versions: [1] -> [2]"],
    ),
    "tokenizer": ({}, {"policy_sha256": "f" * 64}, [f"policy_sha256: {'e' * 64} -> {'f' * 64}"]),
}  # fmt: skip


@pytest.mark.parametrize("entry", OTHER_FLEETS)
async def test_each_entry_of_the_topology_is_compared_and_listed(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """Break: rl/snapshots/topology.py.

    Leave the entry out of `_SERVER_FIELDS`, or out of `_entries`.  What the dataset means is
    compared by the loader: `tests/rl/records/test_loader.py`.
    """
    config = config.model_copy(update={"policy_sha256": "e" * 64})
    saved = topology_of(config, FLEET.values(), {"epochs": 1})
    monkeypatch.setattr(folder_cases, "topology", lambda: saved)
    start_job(config)
    save(SnapshotFolder(config), THIRD, incarnation=3)
    incarnations.claim(config.job_folder, {"run_id": "another restore"})

    assert (await select(config, FLEET.values(), incarnation=4)).snapshot == "snapshot_000003"
    servers, identity, differences = OTHER_FLEETS[entry]
    other = [one.model_copy(update=servers.get(name, {})) for name, one in FLEET.items()]
    changed = config.model_copy(update=identity)
    with pytest.raises(TopologyMismatch) as caught:
        await select(changed, other, strict=True, incarnation=4)
    assert caught.value.details["differences"] == differences
    moved = [one.model_copy(update={"url": "http://127.0.0.1:2", "instance_id": "j"})
             for one in FLEET.values()]  # fmt: skip
    assert (await select(config, moved, strict=True, incarnation=4)).skipped == []
