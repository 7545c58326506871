"""The recovery ledger: all rollouts of the job and what is owed for them (design section 7).

Guarantees: a rollout finishes or fails exactly once; an acknowledgement is owed from the change
that finished its rollout until `paid`. Records are immutable: a copy taken under the barrier's
cut stays as it was. A snapshot with an acknowledgement owed can be neither written nor read.

Not guaranteed here: that changes happen inside a barrier section; callers see to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from gym.protocol import NotReady
from rl.records import parquet_file
from rl.records.damage import damaged
from rl.records.rollout_record import RolloutRecord, Run, RunPhase

LEDGER_FILE = "rl/recovery_ledger.parquet"
_RUN = pa.struct(
    [
        pa.field("attempt_index", pa.int64()),
        pa.field("incarnation", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("failure", pa.string()),
    ]
)
_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", pa.string()),
        pa.field("agent", pa.string()),
        pa.field("runs", pa.list_(pa.field("element", _RUN))),
        pa.field("staging_keys", pa.list_(pa.field("element", pa.string()))),
        pa.field("reward", pa.float64()),
        pa.field("result_digest", pa.string()),
        pa.field("owed", pa.bool_()),
    ]
)


class RecoveryLedger(Mapping[str, RolloutRecord]):
    """All rollouts of the job, by id, in the order they were given out; `dict` copies it.

    Args:
        records: Those of a restored job; none for a fresh one.
    """

    def __init__(self, records: Iterable[RolloutRecord] = ()) -> None:
        self._records: dict[str, RolloutRecord] = {}
        for record in records:
            if record.rollout_id in self._records:
                raise ValueError(f"rollout {record.rollout_id} is listed twice")
            self._records[record.rollout_id] = record
        self._owed = {r.rollout_id: r for r in self._records.values() if r.owed}
        self._paid = asyncio.Event()

    def __getitem__(self, rollout_id: str) -> RolloutRecord:
        """The record of a rollout that was given out."""
        return self._records[rollout_id]

    def __iter__(self) -> Iterator[str]:
        """Ids of the rollouts."""
        return iter(self._records)

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self._records)

    def owed(self) -> list[RolloutRecord]:
        """Finished rollouts whose result is not acknowledged yet."""
        return list(self._owed.values())

    def under_way(self, rollout_id: str, attempt_index: int) -> RolloutRecord:
        """The record of a rollout whose newest run is this one and not over.

        Raises:
            ValueError: It is not.
        """
        record = self._records.get(rollout_id)
        if not (record and record.unfinished and record.run.attempt_index == attempt_index):
            raise ValueError(f"run {attempt_index} of {rollout_id} is not under way")
        return record

    # --- changes; each inside a barrier section -----------------------------------------------

    def reserve(self, rollout_id: str, agent: str, incarnation: int) -> RolloutRecord:
        """Add a rollout with its run 0, waiting to be sent."""
        if rollout_id in self._records:
            raise ValueError(f"rollout {rollout_id} was given out before")
        run = Run(attempt_index=0, incarnation=incarnation, state=RunPhase.WAITING)
        return self._put(RolloutRecord(rollout_id=rollout_id, agent=agent, runs=[run]))

    def started(self, rollout_id: str, attempt_index: int) -> None:
        """Note that the run is sent. No section: a snapshot asks the servers what they hold."""
        self._put(self.under_way(rollout_id, attempt_index).with_run(RunPhase.STARTED))

    def finish(
        self,
        rollout_id: str,
        attempt_index: int,
        *,
        reward: float,
        result_digest: str,
        staging_keys: list[str],
    ) -> RolloutRecord:
        """Take the run's result over: from now on its acknowledgement is owed."""
        record = self.under_way(rollout_id, attempt_index).with_run(
            RunPhase.FINISHED,
            reward=reward,
            result_digest=result_digest,
            staging_keys=staging_keys,
            owed=True,
        )
        self._owed[rollout_id] = record
        return self._put(record)

    def paid(self, rollout_id: str, result_digest: str) -> None:
        """Note that Gym has answered the acknowledgement with 2xx; repeatable."""
        record = self._owed.get(rollout_id)
        if record is None or record.result_digest != result_digest:
            return
        del self._owed[rollout_id]
        self._put(record.changed(owed=False))
        self._paid.set()
        self._paid = asyncio.Event()

    def fail(self, rollout_id: str, attempt_index: int, failure: str) -> RolloutRecord:
        """End the run as failed; the rollout too, unless `next_run` follows in the section."""
        record = self.under_way(rollout_id, attempt_index)
        runs = [*record.runs[:-1], record.run.ended(RunPhase.FAILED, failure)]
        return self._put(record.changed(runs=runs, staging_keys=[]))

    def next_run(self, rollout_id: str, incarnation: int) -> RolloutRecord:
        """Add run n+1 of a rollout, waiting: after a failed run n, or for a restore."""
        record = self._records[rollout_id]
        if record.finished:
            raise ValueError(f"rollout {rollout_id} is finished")
        old = record.run if record.failed else record.run.ended(RunPhase.SUPERSEDED)
        new = Run(
            attempt_index=old.attempt_index + 1, incarnation=incarnation, state=RunPhase.WAITING
        )
        return self._put(record.changed(runs=[*record.runs[:-1], old, new]))

    def disown(self, rollout_id: str) -> None:
        """Let the rollout own no staging row any more: it starts over."""
        self._put(self._records[rollout_id].changed(staging_keys=[]))

    async def wait_paid(self, rollout_ids: Iterable[str] | None = None) -> None:
        """Return when nothing is owed for these rollouts; None: for any."""
        watched = None if rollout_ids is None else set(rollout_ids)
        while self._owed if watched is None else watched & self._owed.keys():
            await self._paid.wait()

    # --- the file -----------------------------------------------------------------------------

    @staticmethod
    def encode(records: Mapping[str, RolloutRecord]) -> bytes:
        """The bytes of `rl/recovery_ledger.parquet`. Takes a while: call it in a thread.

        Raises:
            NotReady: An acknowledgement is owed.
        """
        if owed := [record.rollout_id for record in records.values() if record.owed]:
            raise NotReady("acknowledgements are owed", details={"rollouts": owed[:100]})
        return parquet_file.encode(LEDGER_FILE, _SCHEMA, list(records.values()))

    @staticmethod
    def decode(data: bytes) -> RecoveryLedger:
        """Read the file, strictly.

        Raises:
            UnsupportedSchema: It was written by another version.
            SnapshotDamaged: It does not parse, names a rollout twice, or an acknowledgement is
                owed in it.
        """
        records = parquet_file.decode(LEDGER_FILE, _SCHEMA, RolloutRecord, data)
        if any(record.owed for record in records):
            raise damaged(LEDGER_FILE, "an acknowledgement is owed")
        try:
            return RecoveryLedger(records)
        except ValueError as error:
            raise damaged(LEDGER_FILE, str(error)) from None

    def _put(self, record: RolloutRecord) -> RolloutRecord:
        self._records[record.rollout_id] = record
        return record
