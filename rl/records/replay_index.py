"""The replay index: which finished groups lie in TransferQueue, ready for the trainer.

Guarantees: a group (all rollouts of one prompt) is ready once, when the last of its rollouts is
over. The index is derived from the ledger, which counts, not TransferQueue (design section 7):
`ready_groups` says what it must be, and a file that differs is refused.

Without a trainer nothing is claimed and nothing cleared: every finished group is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from pydantic import Field

from gym.protocol import Wire
from rl.errors import SnapshotDamaged
from rl.records import parquet_file
from rl.records.recovery_ledger import RolloutRecord

INDEX_FILE = "rl/replay_index.parquet"


class ReadyGroup(Wire):
    """One finished group; its rows have the rollout ids as keys."""

    group_id: str
    rollout_ids: list[str] = Field(min_length=1)


_SCHEMA = pa.schema(
    [
        pa.field("group_id", pa.string()),
        pa.field("rollout_ids", pa.list_(pa.field("element", pa.string()))),
    ]
)
Grouping = Callable[[str], tuple[str, list[str]]]
Lookup = Callable[[str], RolloutRecord | None]


def is_over(records: Lookup, members: Iterable[str]) -> bool:
    """Whether every one of these rollouts has finished or failed for good."""
    return all((r := records(member)) is not None and not r.unfinished for member in members)


def ready_groups(records: Mapping[str, RolloutRecord], group: Grouping) -> dict[str, ReadyGroup]:
    """The groups of which every rollout is over, by group id."""
    groups = dict(group(rollout_id) for rollout_id in records)
    return {
        group_id: ReadyGroup(group_id=group_id, rollout_ids=members)
        for group_id, members in groups.items()
        if is_over(records.get, members)
    }


class ReplayIndex:
    """The groups that are ready."""

    def __init__(self, groups: Iterable[ReadyGroup] = ()) -> None:
        """Start from what is ready already."""
        self._ready = {group.group_id: group for group in groups}

    def __len__(self) -> int:
        """Groups ready."""
        return len(self._ready)

    def copy(self) -> dict[str, ReadyGroup]:
        """All ready groups as they are now."""
        return dict(self._ready)

    def add(self, group_id: str, members: list[str]) -> None:
        """The group's last rollout is over. Inside that rollout's barrier section; repeatable."""
        self._ready[group_id] = ReadyGroup(group_id=group_id, rollout_ids=members)

    @staticmethod
    def encode(groups: Mapping[str, ReadyGroup]) -> bytes:
        """The bytes of `rl/replay_index.parquet`. Takes a while: call it in a thread."""
        return parquet_file.encode(INDEX_FILE, _SCHEMA, list(groups.values()))

    @staticmethod
    def decode(data: bytes) -> ReplayIndex:
        """Read the file, strictly.

        Raises:
            UnsupportedSchema: It was written by another version.
            SnapshotDamaged: It does not parse, or names a group twice.
        """
        groups = parquet_file.decode(INDEX_FILE, _SCHEMA, ReadyGroup, data)
        index = ReplayIndex(groups)
        if len(index) != len(groups):
            raise SnapshotDamaged(
                f"{INDEX_FILE}: a group is listed twice", details={"file": INDEX_FILE}
            )
        return index
