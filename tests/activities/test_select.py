"""What a restore takes: the newest snapshot that is intact and fits; each other one is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import folder as folder_activities
from activities.contract import BeginRequest, SelectRequest, SelectResult
from activities.controller import ControllerActivities
from activities.folder import FolderActivities
from rl import incarnations
from rl.errors import ActorLost, ControllerLost, NoSnapshot, SnapshotDamaged, TopologyMismatch
from rl.messages import JobConfig
from rl.snapshot_folder import SnapshotFolder
from tests.activities.test_claim import _not_driven
from tests.rl.folder_cases import FIRST, SECOND, config_of, save, start_job

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
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobConfig:
    """A job of the folder cases' topology, with two snapshots, being restored."""
    monkeypatch.setattr(folder_activities, "driving", _not_driven)
    found = config_of(tmp_path)
    start_job(found)
    folder = SnapshotFolder(found)
    save(folder, FIRST)
    save(folder, SECOND)
    incarnations.claim(found.job_folder, {"run_id": "restore"})
    return found


async def select(config: JobConfig, *, strict: bool = False) -> SelectResult:
    activities = FolderActivities(cast(Client, None), config)
    request = SelectRequest(
        job_id=config.job_id,
        incarnation=2,
        restore_id="rs",
        snapshot="latest",
        strict=strict,
        servers=[],
        excluded=[],
        reasons=[],
    )
    found = await ActivityEnvironment().run(activities.select_snapshot, request)
    return cast(SelectResult, found)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_snapshot_gives_way_to_the_older_one_and_its_file_is_named(
    config: JobConfig, damage: str
) -> None:
    """Break: take the first candidate."""
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


# --- a save while nothing runs, or not yet ----------------------------------------------------


async def _begin(config: JobConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def nobody(*_: Any, **__: Any) -> Any:
        raise ActorLost("there is no such actor")

    monkeypatch.setattr("activities.controller.call", nobody)
    monkeypatch.setattr("activities.controller.driving", _not_driven)
    activities = ControllerActivities(cast(Client, None), config)
    request = BeginRequest(job_id=config.job_id, checkpoint_id="c1", name=None)
    return await ActivityEnvironment().run(activities.begin_checkpoint, request)


async def test_a_save_while_a_restore_runs_is_refused_and_says_to_wait(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: say that the job has no controller; a second restore would end the first."""
    answer = await _begin(config, monkeypatch)
    assert (answer.agreed, answer.refusal) == (False, "restore_not_finished")
    assert "incarnation 2" in answer.reason and "wait for" in answer.reason


async def test_a_save_without_a_job_says_how_to_bring_it_back(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    incarnations.record_origin(config.job_folder, 2, "snapshot_000002")
    with pytest.raises(ControllerLost, match=r"`turnpoint run` starts it.*`turnpoint restore`"):
        await _begin(config, monkeypatch)
