"""RL's part of a snapshot: captured in agreement, written synced, read back strictly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gym.protocol import DigestMismatch, NotReady
from rl.config import Workload
from rl.errors import InventoryMismatch
from rl.messages import Inventory
from rl.records.loader import LOADER_FILE, Loader
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger
from rl.records.replay_index import INDEX_FILE, ready_groups
from rl.records.rollout_record import RunPhase
from rl.records.snapshot_part import RlRecords, capture, for_snapshot, read_records, write_records
from tests.rl.fakes import AGENT, dataset

SHA = "a" * 64
NOTHING_HELD = Inventory(continuations={AGENT: []}, sessions={}, storage={}, line_counts={AGENT: 0})


def _job(root: Path) -> tuple[RecoveryLedger, Loader]:
    """Both rollouts of p0 are given out: p0_g0 is finished and acknowledged, p0_g1 is sent."""
    loader = Loader.open(Workload(dataset=dataset(root), generations=2))
    ledger = RecoveryLedger()
    for _ in range(2):
        prompt = loader.next()
        assert prompt is not None
        ledger.reserve(prompt.rollout_id, AGENT, 1)
        ledger.started(prompt.rollout_id, 0)
    ledger.finish("p0_g0", 0, reward=1, result_digest=SHA, staging_keys=[])
    ledger.paid("p0_g0", SHA)
    return ledger, loader


def _capture(ledger: RecoveryLedger, loader: Loader) -> RlRecords:
    groups = ready_groups(ledger, loader.group)
    return capture(
        ledger, loader, groups, NOTHING_HELD, staging_keys=set(), training_keys={"p0_g0"}
    )


def test_a_capture_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    ledger, loader = _job(tmp_path)
    captured = _capture(ledger, loader)
    assert captured.unfinished == 1
    (tmp_path / "rl").mkdir()
    files = write_records(captured, tmp_path)
    assert [(file.path, file.records) for file in files] == [
        (LOADER_FILE, None),
        (INDEX_FILE, 0),
        (LEDGER_FILE, 2),
    ]
    assert read_records(tmp_path, files) == captured


def test_a_capture_does_not_change_with_the_job(tmp_path: Path) -> None:
    """Break: rl/records/snapshot_part.py: keep the live records; the save writes later ones."""
    ledger, loader = _job(tmp_path)
    captured = _capture(ledger, loader)
    before = dict(captured.records)
    ledger.fail("p0_g1", 0, "server_fault")
    loader.next()
    assert captured.records == before and captured.place.place == 2


def test_records_that_disagree_are_refused(tmp_path: Path) -> None:
    """Break: rl/records/snapshot_part.py: do not compare what was captured."""
    ledger, loader = _job(tmp_path)
    captured = _capture(ledger, loader)
    groups = ready_groups({"p0_g0": ledger["p0_g0"]}, lambda name: ("p0", [name]))
    with pytest.raises(InventoryMismatch, match="other groups"):
        replace(captured, groups=groups).require_agreement(loader)
    loader.next()
    with pytest.raises(InventoryMismatch, match="given out other rollouts"):
        captured.require_agreement(loader)
    with pytest.raises(InventoryMismatch, match="given out other rollouts"):
        _capture(ledger, loader)


def test_an_owed_acknowledgement_refuses_the_capture(tmp_path: Path) -> None:
    ledger, loader = _job(tmp_path)
    ledger.finish("p0_g1", 0, reward=1, result_digest=SHA, staging_keys=[])
    with pytest.raises(NotReady) as refused:
        _capture(ledger, loader)
    assert refused.value.details == {"rollouts": ["p0_g1"]}


def test_a_file_that_is_not_listed_or_another_is_refused(tmp_path: Path) -> None:
    captured = _capture(*_job(tmp_path))
    (tmp_path / "rl").mkdir()
    files = write_records(captured, tmp_path)
    with pytest.raises(DigestMismatch, match=LEDGER_FILE):
        read_records(tmp_path, files[:2])
    (tmp_path / INDEX_FILE).write_bytes(b"another")
    with pytest.raises(DigestMismatch, match=INDEX_FILE):
        read_records(tmp_path, files)


def test_a_snapshot_says_started_only_of_what_an_agent_holds() -> None:
    live = _one_in_each_state()
    saved = for_snapshot(live, {"p1_g0": ["1/p1_g0-a1/call-0"]})
    assert saved["p0_g0"].run.state is RunPhase.WAITING  # sent, and not accepted
    assert saved["p1_g0"].run.state is RunPhase.STARTED
    assert saved["p1_g0"].staging_keys == ["1/p1_g0-a1/call-0"]
    assert saved["p0_g1"] == live["p0_g1"] and saved["p1_g1"] == live["p1_g1"]
    assert live["p0_g0"].run.state is RunPhase.STARTED


def _one_in_each_state() -> RecoveryLedger:
    ledger = RecoveryLedger()
    for rollout_id in ("p0_g0", "p0_g1", "p1_g0", "p1_g1"):
        ledger.reserve(rollout_id, AGENT, 1)
    ledger.started("p0_g0", 0)
    ledger.finish("p0_g1", 0, reward=0.5, result_digest=SHA, staging_keys=["1/p0_g1/call-0"])
    ledger.paid("p0_g1", SHA)
    ledger.fail("p1_g0", 0, "session_uncertain")
    ledger.next_run("p1_g0", 1)
    ledger.fail("p1_g1", 0, "server_fault")
    return ledger
