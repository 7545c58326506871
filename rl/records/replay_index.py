"""The replay index: the finished groups that lie in TransferQueue, ready for the trainer.

Guarantees: a group (all rollouts of one prompt) is ready once, when the last of its rollouts is
over. The index is derived from the ledger, not from TransferQueue (design section 7):
`ready_groups` computes it, and a file that differs is refused.

Without a trainer nothing is claimed and nothing cleared: every finished group is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pydantic import Field

from gym.protocol import Wire
from rl.records import parquet_file
from rl.records.damage import damaged
from rl.records.rollout_record import RolloutRecord

INDEX_FILE = "rl/replay_index.parquet"
_SCHEMA = pa.schema(
    [
        pa.field("group_id", pa.string()),
        pa.field("rollout_ids", pa.list_(pa.field("element", pa.string()))),
    ]
)
Grouping = Callable[[str], tuple[str, list[str]]]
"""Answers a rollout's group and all rollouts of that group."""


class ReadyGroup(Wire):
    """One finished group; its rows have the rollout ids as keys."""

    group_id: str
    rollout_ids: list[str] = Field(min_length=1)


def ready_groups(records: Mapping[str, RolloutRecord], group: Grouping) -> dict[str, ReadyGroup]:
    """The groups of which every rollout has finished or failed for good, by group id."""
    groups = dict(group(rollout_id) for rollout_id in records)
    return {
        group_id: ReadyGroup(group_id=group_id, rollout_ids=members)
        for group_id, members in groups.items()
        if all(member in records and not records[member].unfinished for member in members)
    }


def encode(groups: Mapping[str, ReadyGroup]) -> bytes:
    """The bytes of `rl/replay_index.parquet`. Takes a while: call it in a thread."""
    return parquet_file.encode(INDEX_FILE, _SCHEMA, list(groups.values()))


def decode(data: bytes) -> dict[str, ReadyGroup]:
    """Read the file, strictly.

    Raises:
        UnsupportedSchema: It was written by another version.
        SnapshotDamaged: It does not parse, or names a group twice.
    """
    listed = parquet_file.decode(INDEX_FILE, _SCHEMA, ReadyGroup, data)
    groups = {group.group_id: group for group in listed}
    if len(groups) != len(listed):
        raise damaged(INDEX_FILE, "a group is listed twice")
    return groups
