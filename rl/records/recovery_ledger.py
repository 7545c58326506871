"""The recovery ledger: per rollout its runs, what it owns, what is owed for it (design section 7).

Guarantees: run numbers of a rollout are 0, 1, 2, ... without a gap; only the newest can be
under way; a rollout finishes or fails exactly once. An acknowledgement is owed from the change
that finished its rollout until `paid`. Records are immutable: a copy taken under the barrier's
cut stays as it was. A snapshot with an acknowledgement owed can be neither written nor read.

Not guaranteed here: that changes happen inside a barrier section; callers see to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Self

import pyarrow as pa
from pydantic import Field, model_validator

from gym.protocol import NotReady, Wire
from gym.protocol.identity import RolloutId
from gym.protocol.records import ServerName, Sha256
from rl.errors import SnapshotDamaged
from rl.records import parquet_file

LEDGER_FILE = "rl/recovery_ledger.parquet"


class RunState(StrEnum):
    """Where one run stands."""

    WAITING = "waiting"
    """Reserved and not sent; in a file also: sent, and not accepted by an agent."""
    STARTED = "started"
    """Sent; in a file: an agent holds it."""
    FINISHED = "finished"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """A restore gave its rollout the next run."""


class Run(Wire):
    """One execution of a rollout."""

    attempt_index: int = Field(ge=0)
    incarnation: int = Field(ge=1)
    state: RunState
    failure: str | None = None
    """Code of the error that ended a failed run."""


class RolloutRecord(Wire):
    """One rollout with everything that RL knows about it."""

    rollout_id: RolloutId
    agent: ServerName
    runs: list[Run] = Field(min_length=1)
    staging_keys: list[str] = []
    """Staging rows it owns, oldest call first, whatever run staged them."""
    reward: float | None = None
    result_digest: Sha256 | None = None
    owed: bool = False
    """Whether the acknowledgement of its result is owed."""

    @property
    def run(self) -> Run:
        """The newest run."""
        return self.runs[-1]

    @property
    def finished(self) -> bool:
        """Its result is RL's own."""
        return self.run.state is RunState.FINISHED

    @property
    def failed(self) -> bool:
        """Its runs are used up."""
        return self.run.state is RunState.FAILED

    @property
    def unfinished(self) -> bool:
        """A run is waiting or under way."""
        return not (self.finished or self.failed)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if [run.attempt_index for run in self.runs] != list(range(len(self.runs))):
            raise ValueError("run numbers are not 0, 1, 2, ...")
        if any(run.state not in (RunState.FAILED, RunState.SUPERSEDED) for run in self.runs[:-1]):
            raise ValueError("an older run is not over")
        if self.run.state is RunState.SUPERSEDED:
            raise ValueError("the newest run cannot be superseded")
        if self.finished != (self.result_digest is not None and self.reward is not None):
            raise ValueError("a finished rollout has a reward and a digest, another has neither")
        if self.owed and not self.finished:
            raise ValueError("an acknowledgement is owed for a finished rollout alone")
        if len(set(self.staging_keys)) != len(self.staging_keys):
            raise ValueError("a staging key is listed twice")
        return self


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


class RecoveryLedger:
    """All rollouts of the job, by id, in the order they were given out."""

    def __init__(self, records: Iterable[RolloutRecord] = ()) -> None:
        """Start from records; none for a fresh job."""
        self._records: dict[str, RolloutRecord] = {}
        for record in records:
            if record.rollout_id in self._records:
                raise ValueError(f"rollout {record.rollout_id} is listed twice")
            self._records[record.rollout_id] = record
        self._owed = {r.rollout_id: r for r in self._records.values() if r.owed}
        self._paid = asyncio.Event()

    def __len__(self) -> int:
        """Rollouts known."""
        return len(self._records)

    def __getitem__(self, rollout_id: str) -> RolloutRecord:
        """The record of a rollout that is known."""
        return self._records[rollout_id]

    def get(self, rollout_id: str) -> RolloutRecord | None:
        """The record of a rollout, if there is one."""
        return self._records.get(rollout_id)

    def copy(self) -> dict[str, RolloutRecord]:
        """All records as they are now."""
        return dict(self._records)

    def owed(self) -> list[RolloutRecord]:
        """Finished rollouts whose result is not acknowledged yet."""
        return list(self._owed.values())

    def expects(self, rollout_id: str, attempt_index: int) -> bool:
        """Whether a result of this run is to be taken over."""
        record = self._records.get(rollout_id)
        return (
            record is not None and record.unfinished and record.run.attempt_index == attempt_index
        )

    # --- changes; each inside a barrier section -----------------------------------------------

    def reserve(self, rollout_id: str, agent: str, incarnation: int) -> RolloutRecord:
        """A new rollout with its run 0, waiting to be sent."""
        if rollout_id in self._records:
            raise ValueError(f"rollout {rollout_id} was given out before")
        run = Run(attempt_index=0, incarnation=incarnation, state=RunState.WAITING)
        return self._put(RolloutRecord(rollout_id=rollout_id, agent=agent, runs=[run]))

    def started(self, rollout_id: str, attempt_index: int) -> None:
        """The run is sent. No section: a snapshot asks the servers what was accepted."""
        record = self._current(rollout_id, attempt_index)
        self._put(_with_run(record, RunState.STARTED))

    def finish(
        self,
        rollout_id: str,
        attempt_index: int,
        *,
        reward: float,
        result_digest: str,
        staging_keys: list[str],
    ) -> RolloutRecord:
        """The run's result is RL's own from now on, and its acknowledgement owed."""
        record = self._current(rollout_id, attempt_index)
        record = _with_run(
            record,
            RunState.FINISHED,
            reward=reward,
            result_digest=result_digest,
            staging_keys=staging_keys,
            owed=True,
        )
        self._owed[rollout_id] = record
        return self._put(record)

    def paid(self, rollout_id: str, result_digest: str) -> None:
        """Gym has answered the acknowledgement with 2xx; repeatable."""
        record = self._owed.get(rollout_id)
        if record is None or record.result_digest != result_digest:
            return
        del self._owed[rollout_id]
        self._put(_changed(record, owed=False))
        self._paid.set()
        self._paid = asyncio.Event()

    def fail(self, rollout_id: str, attempt_index: int, failure: str) -> RolloutRecord:
        """The run has failed; the rollout with it unless `next_run` follows in the section."""
        record = self._current(rollout_id, attempt_index)
        runs = [*record.runs[:-1], _run(record.run, RunState.FAILED, failure)]
        return self._put(_changed(record, runs=runs, staging_keys=[]))

    def next_run(self, rollout_id: str, incarnation: int) -> RolloutRecord:
        """Run n+1 of a rollout, waiting: after a failed run n, or for a restore."""
        record = self._records[rollout_id]
        if record.finished:
            raise ValueError(f"rollout {rollout_id} is finished")
        old = record.run if record.failed else _run(record.run, RunState.SUPERSEDED)
        new = Run(
            attempt_index=old.attempt_index + 1, incarnation=incarnation, state=RunState.WAITING
        )
        return self._put(_changed(record, runs=[*record.runs[:-1], old, new]))

    def disown(self, rollout_id: str) -> None:
        """The rollout starts over: it owns no staging row any more."""
        self._put(_changed(self._records[rollout_id], staging_keys=[]))

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
        owed = [record.rollout_id for record in records.values() if record.owed]
        if owed:
            raise NotReady("acknowledgements are owed", details={"rollouts": owed[:100]})
        return parquet_file.encode(LEDGER_FILE, _SCHEMA, list(records.values()))

    @staticmethod
    def decode(data: bytes) -> RecoveryLedger:
        """Read the file, strictly.

        Raises:
            UnsupportedSchema: It was written by another version.
            SnapshotDamaged: It does not parse, names a rollout twice, or one is owed.
        """
        records = parquet_file.decode(LEDGER_FILE, _SCHEMA, RolloutRecord, data)
        if any(record.owed for record in records):
            raise _damaged("an acknowledgement is owed")
        try:
            return RecoveryLedger(records)
        except ValueError as error:
            raise _damaged(str(error)) from None

    def _put(self, record: RolloutRecord) -> RolloutRecord:
        self._records[record.rollout_id] = record
        return record

    def _current(self, rollout_id: str, attempt_index: int) -> RolloutRecord:
        if not self.expects(rollout_id, attempt_index):
            raise ValueError(f"run {attempt_index} of {rollout_id} is not under way")
        return self._records[rollout_id]


def for_snapshot(
    records: Mapping[str, RolloutRecord], started: Mapping[str, list[str]]
) -> dict[str, RolloutRecord]:
    """The records as a snapshot keeps them.

    Args:
        records: A copy of the live ledger.
        started: Rollouts whose newest run an agent holds, each with the staging keys that its
            continuation needs, oldest call first.

    Returns:
        The same rollouts; an unfinished one without an entry is waiting to be sent.
    """
    saved = {}
    for rollout_id, record in records.items():
        if record.unfinished:
            keys = started.get(rollout_id)
            state = RunState.WAITING if keys is None else RunState.STARTED
            record = _with_run(record, state, staging_keys=keys or [])
        saved[rollout_id] = record
    return saved


def _run(run: Run, state: RunState, failure: str | None = None) -> Run:
    return run.model_copy(update={"state": state, "failure": failure})


def _with_run(record: RolloutRecord, state: RunState, **update: object) -> RolloutRecord:
    return _changed(record, runs=[*record.runs[:-1], _run(record.run, state)], **update)


def _changed(record: RolloutRecord, **update: object) -> RolloutRecord:
    # Through validation, unlike `model_copy`: an inconsistent record must never be kept.
    return RolloutRecord.model_validate({**dict(record), **update})


def _damaged(why: str) -> SnapshotDamaged:
    return SnapshotDamaged(f"{LEDGER_FILE}: {why}", details={"file": LEDGER_FILE})
