"""RL's part of a snapshot: taken as immutable copies under the barrier, written off the loop.

Guarantees: ledger, loader place and replay index are of one moment; what is written agrees with
the servers and with TransferQueue (`rl.records.inventories`). Every file is synced and digested.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gym.durable import refusal_of_the_disk, write_durably
from gym.protocol import NotReady, WrittenFile
from rl.controller.job_state import JobState
from rl.controller.ports import DataPlanePort
from rl.data_plane.names import STAGING, TRAINING
from rl.errors import InventoryMismatch
from rl.messages import SINGLE_CONTROLLER, Inventory
from rl.records.inventories import compare
from rl.records.loader import LOADER_FILE, LoaderPlace
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger, RolloutRecord, for_snapshot
from rl.records.replay_index import INDEX_FILE, Grouping, ReadyGroup, ReplayIndex, ready_groups
from rl.snapshots.check import verified_bytes


@dataclass(frozen=True)
class Picture:
    """RL's bookkeeping at one moment; nothing in it changes any more."""

    records: dict[str, RolloutRecord]
    groups: dict[str, ReadyGroup]
    place: LoaderPlace


async def take_picture(job: JobState, plane: DataPlanePort, inventory: Inventory) -> Picture:
    """Copy and compare. Call it inside the barrier's cut.

    Raises:
        NotReady: An acknowledgement is owed.
        InventoryMismatch: Ledger, servers, index and TransferQueue disagree.
    """
    if owed := job.ledger.owed():
        raise NotReady(
            f"{len(owed)} acknowledgements are owed",
            details={"rollouts": [record.rollout_id for record in owed][:100]},
        )
    staging = await job.data_plane(plane.keys(STAGING))
    training = await job.data_plane(plane.keys(TRAINING))
    live = job.ledger.copy()
    held = compare(live, inventory, staging_keys=staging, training_keys=training)
    started = {name: held.storage.get(name, []) for name in held.continuations}
    picture = Picture(for_snapshot(live, started), job.index.copy(), job.loader.place)
    demand_agreement(picture, job.loader.given(), job.loader.group)
    return picture


def demand_agreement(picture: Picture, given: list[str], group: Grouping) -> None:
    """Ledger, loader and index agree among themselves.

    Raises:
        InventoryMismatch: A rollout was given out and is not in the ledger, or the other way
            round, or the index lists other groups than are finished.
    """
    if list(picture.records) != given:
        raise InventoryMismatch("the loader has given out other rollouts than the ledger holds")
    if picture.groups != ready_groups(picture.records, group):
        raise InventoryMismatch("the replay index lists other groups than are finished")


async def write_picture(picture: Picture, folder: Path) -> list[WrittenFile]:
    """Write RL's three files below `<folder>/rl/`, synced.

    Raises:
        NoSpace, NotWritten: The disk refuses; the file is named.
    """
    return await asyncio.to_thread(_write, picture, folder)


def _write(picture: Picture, folder: Path) -> list[WrittenFile]:
    parts: list[tuple[str, bytes, int | None]] = [
        (LOADER_FILE, picture.place.encode(), None),
        (INDEX_FILE, ReplayIndex.encode(picture.groups), len(picture.groups)),
        (LEDGER_FILE, RecoveryLedger.encode(picture.records), len(picture.records)),
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


def read_picture(folder: Path, files: Iterable[WrittenFile]) -> Picture:
    """Read RL's three files back. Blocks on the disk: call it in a thread.

    Args:
        folder: The snapshot folder.
        files: The manifest's files; RL's own are picked out.

    Raises:
        DigestMismatch: A file is missing, not listed, or not the one that was written.
        UnsupportedSchema, SnapshotDamaged: It is, and it does not parse.
    """
    listed = {file.path: file for file in files}
    data = {
        path: verified_bytes(folder, path, listed.get(path))
        for path in (LOADER_FILE, INDEX_FILE, LEDGER_FILE)
    }
    return Picture(
        records=RecoveryLedger.decode(data[LEDGER_FILE]).copy(),
        groups=ReplayIndex.decode(data[INDEX_FILE]).copy(),
        place=LoaderPlace.decode(data[LOADER_FILE]),
    )
