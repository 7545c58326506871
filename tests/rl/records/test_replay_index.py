"""The replay index: derived from the ledger, read strictly."""

import pytest

from rl.errors import SnapshotDamaged
from rl.records import parquet_file, replay_index
from rl.records.recovery_ledger import RecoveryLedger
from rl.records.replay_index import _SCHEMA, INDEX_FILE, ReadyGroup, ready_groups

SHA = "a" * 64


def _group(rollout_id: str) -> tuple[str, list[str]]:
    prompt = rollout_id.split("_")[0]
    return prompt, [f"{prompt}_g0", f"{prompt}_g1"]


def test_a_group_is_ready_when_all_its_rollouts_are_over() -> None:
    ledger = RecoveryLedger()
    for rollout_id in ("p0_g0", "p0_g1", "p1_g0"):
        ledger.reserve(rollout_id, "agent", 1)
    ledger.finish("p0_g0", 0, reward=1, result_digest=SHA, staging_keys=[])
    assert ready_groups(ledger, _group) == {}
    ledger.fail("p0_g1", 0, "server_fault")
    ledger.finish("p1_g0", 0, reward=1, result_digest=SHA, staging_keys=[])  # p1_g1 is to come
    assert list(ready_groups(ledger, _group)) == ["p0"]


def test_the_file_gives_back_what_was_written() -> None:
    groups = {"p0": ReadyGroup(group_id="p0", rollout_ids=["p0_g0", "p0_g1"])}
    assert replay_index.decode(replay_index.encode(groups)) == groups
    assert replay_index.decode(replay_index.encode({})) == {}


def test_a_group_listed_twice_is_refused() -> None:
    group = ReadyGroup(group_id="p0", rollout_ids=["p0_g0"])
    with pytest.raises(SnapshotDamaged, match="twice"):
        replay_index.decode(parquet_file.encode(INDEX_FILE, _SCHEMA, [group, group]))
    with pytest.raises(SnapshotDamaged):
        replay_index.decode(b"no parquet")
