"""RL's own part of a snapshot: ledger, loader place and replay index, of one moment.

Guarantees: `capture` answers records that agree with each other, with the servers and with
TransferQueue (`rl.records.inventories`), and that never change. Written files are synced and
digested; read files are those that were written, or an error names the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gym.durable import refusal_of_the_disk, write_durably
from gym.protocol import NotReady, WrittenFile
from rl.errors import InventoryMismatch
from rl.messages import SINGLE_CONTROLLER, Inventory
from rl.records import replay_index
from rl.records.inventories import compare
from rl.records.loader import LOADER_FILE, Loader, LoaderPlace
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger
from rl.records.replay_index import INDEX_FILE, ReadyGroup, ready_groups
from rl.records.rollout_record import RolloutRecord, RunPhase
from rl.snapshots.check import verified_bytes


@dataclass(frozen=True)
class RlRecords:
    """RL's records at one moment."""

    records: dict[str, RolloutRecord]
    groups: dict[str, ReadyGroup]
    place: LoaderPlace

    @property
    def unfinished(self) -> int:
        """Number of rollouts that are waiting or under way."""
        return sum(record.unfinished for record in self.records.values())

    def require_agreement(self, loader: Loader) -> None:
        """Refuse records that disagree with each other.

        Args:
            loader: At the place of these records.

        Raises:
            InventoryMismatch: The ledger does not hold exactly the rollouts that were given out,
                or the index does not list exactly the groups that are finished.
        """
        if list(self.records) != loader.given():
            raise InventoryMismatch("the loader has given out other rollouts than the ledger holds")
        if self.groups != ready_groups(self.records, loader.group):
            raise InventoryMismatch("the replay index lists other groups than are finished")


def capture(
    ledger: RecoveryLedger,
    loader: Loader,
    groups: Mapping[str, ReadyGroup],
    inventory: Inventory,
    *,
    staging_keys: set[str],
    training_keys: set[str],
) -> RlRecords:
    """Copy RL's live records and compare them. Call it inside the barrier's cut.

    Args:
        ledger: All rollouts.
        loader: Its place is captured.
        groups: The replay index.
        inventory: The servers' answers at commit.
        staging_keys: As for `compare`.
        training_keys: As for `compare`.

    Raises:
        NotReady: An acknowledgement is owed.
        InventoryMismatch: Ledger, loader, index, servers and TransferQueue disagree.
    """
    if owed := ledger.owed():
        raise NotReady(
            f"{len(owed)} acknowledgements are owed",
            details={"rollouts": [record.rollout_id for record in owed][:100]},
        )
    matched = compare(ledger, inventory, staging_keys=staging_keys, training_keys=training_keys)
    started = {name: matched.storage.get(name, []) for name in matched.continuations}
    captured = RlRecords(for_snapshot(ledger, started), dict(groups), loader.place)
    captured.require_agreement(loader)
    return captured


def for_snapshot(
    records: Mapping[str, RolloutRecord], started: Mapping[str, list[str]]
) -> dict[str, RolloutRecord]:
    """The records as a snapshot keeps them.

    Args:
        records: The live ledger.
        started: Rollouts whose newest run an agent holds, each with the staging keys that its
            continuation needs, oldest call first.

    Returns:
        The same rollouts; an unfinished one without an entry is waiting to be sent.
    """
    saved = {}
    for rollout_id, record in records.items():
        if record.unfinished:
            keys = started.get(rollout_id)
            state = RunPhase.WAITING if keys is None else RunPhase.STARTED
            record = record.with_run(state, staging_keys=keys or [])
        saved[rollout_id] = record
    return saved


def write_records(captured: RlRecords, folder: Path) -> list[WrittenFile]:
    """Write RL's three files below `<folder>/rl/`, synced. Blocks: call it in a thread.

    Raises:
        NoSpace, NotWritten: The disk refuses; the file is named.
    """
    parts: list[tuple[str, bytes, int | None]] = [
        (LOADER_FILE, captured.place.encode(), None),
        (INDEX_FILE, replay_index.encode(captured.groups), len(captured.groups)),
        (LEDGER_FILE, RecoveryLedger.encode(captured.records), len(captured.records)),
    ]
    files = []
    for path, data, records in parts:
        try:
            write_durably(folder / path, data)
        except OSError as error:
            raise refusal_of_the_disk(error, participant=SINGLE_CONTROLLER) from error
        digest = hashlib.sha256(data).hexdigest()
        files.append(WrittenFile(path=path, bytes=len(data), records=records, sha256=digest))
    return files


def read_records(folder: Path, files: Iterable[WrittenFile]) -> RlRecords:
    """Read RL's three files back. Blocks: call it in a thread.

    Args:
        folder: The snapshot folder.
        files: The manifest's files; RL's own are picked out.

    Raises:
        DigestMismatch: A file is missing, not listed, or not the one that was written.
        UnsupportedSchema, SnapshotDamaged: A file does not parse.
    """
    listed = {file.path: file for file in files}
    place, groups, ledger = (
        verified_bytes(folder, path, listed.get(path))
        for path in (LOADER_FILE, INDEX_FILE, LEDGER_FILE)
    )
    return RlRecords(
        records=dict(RecoveryLedger.decode(ledger)),
        groups=replay_index.decode(groups),
        place=LoaderPlace.decode(place),
    )
