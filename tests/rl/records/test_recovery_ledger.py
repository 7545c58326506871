"""The recovery ledger: results count once, acknowledgements are owed, the file is strict."""

import asyncio
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym.protocol import NotReady, UnsupportedSchema
from rl.errors import SnapshotDamaged
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger
from rl.records.rollout_record import RunPhase

SHA = "a" * 64


def _ledger() -> RecoveryLedger:
    """One rollout in each state."""
    ledger = RecoveryLedger()
    for rollout_id in ("p0_g0", "p0_g1", "p1_g0", "p1_g1"):
        ledger.reserve(rollout_id, "agent", 1)
    ledger.started("p0_g0", 0)
    ledger.finish("p0_g1", 0, reward=0.5, result_digest=SHA, staging_keys=["1/p0_g1/call-0"])
    ledger.paid("p0_g1", SHA)
    ledger.fail("p1_g0", 0, "session_uncertain")
    ledger.next_run("p1_g0", 1)
    ledger.fail("p1_g1", 0, "server_fault")
    return ledger


def test_the_file_gives_back_what_was_written() -> None:
    records = _ledger()
    again = RecoveryLedger.decode(RecoveryLedger.encode(records))
    assert again == records
    assert list(again) == list(records)
    assert [r.run.state for r in again.values()] == [
        RunPhase.STARTED,
        RunPhase.FINISHED,
        RunPhase.WAITING,
        RunPhase.FAILED,
    ]
    assert not RecoveryLedger.decode(RecoveryLedger.encode({}))


def test_an_owed_acknowledgement_is_neither_written_nor_read() -> None:
    ledger = RecoveryLedger()
    ledger.reserve("p0_g0", "agent", 1)
    ledger.finish("p0_g0", 0, reward=1, result_digest=SHA, staging_keys=[])
    with pytest.raises(NotReady):
        RecoveryLedger.encode(ledger)
    ledger.paid("p0_g0", SHA)
    data = RecoveryLedger.encode(ledger)
    table = pq.read_table(pa.BufferReader(data))
    owed = table.set_column(table.schema.get_field_index("owed"), "owed", pa.array([True]))
    with pytest.raises(SnapshotDamaged, match="owed"):
        RecoveryLedger.decode(_bytes(owed))


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _table() -> pa.Table:
    return pq.read_table(pa.BufferReader(RecoveryLedger.encode(_ledger())))


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.drop_columns(["reward"]),
        lambda t: t.append_column("more", pa.array([1] * t.num_rows)),
        lambda t: t.set_column(4, "reward", t.column("reward").cast(pa.float32())),
        lambda t: pa.concat_tables([t, t]),
        lambda t: t.replace_schema_metadata({}),
        lambda t: t.replace_schema_metadata(
            {b"turnpoint": json.dumps({"file": "rl/replay_index.parquet"}).encode()}
        ),
        # the reward of a finished rollout is gone
        lambda t: t.set_column(4, "reward", pa.array([None] * t.num_rows, pa.float64())),
        lambda t: t.set_column(0, "rollout_id", pa.array([None] * t.num_rows, pa.string())),
    ],
)
def test_anything_else_is_refused_with_the_file_named(damage) -> None:
    with pytest.raises(SnapshotDamaged) as caught:
        RecoveryLedger.decode(_bytes(damage(_table())))
    assert caught.value.details["file"] == LEDGER_FILE
    with pytest.raises(SnapshotDamaged):
        RecoveryLedger.decode(b"PAR1 and no more")


def test_another_version_is_refused() -> None:
    header = json.dumps({"file": LEDGER_FILE, "schema_version": 2}).encode()
    with pytest.raises(UnsupportedSchema):
        RecoveryLedger.decode(_bytes(_table().replace_schema_metadata({b"turnpoint": header})))


def test_a_result_counts_once_and_for_the_newest_run_alone() -> None:
    ledger = RecoveryLedger()
    ledger.reserve("p0_g0", "agent", 1)
    ledger.next_run("p0_g0", 2)
    assert ledger.under_way("p0_g0", 1) == ledger["p0_g0"]
    with pytest.raises(ValueError, match="run 0 of p0_g0 is not under way"):
        ledger.under_way("p0_g0", 0)
    with pytest.raises(ValueError):
        ledger.finish("p0_g0", 0, reward=1, result_digest=SHA, staging_keys=[])
    ledger.finish("p0_g0", 1, reward=1, result_digest=SHA, staging_keys=[])
    for again in (
        lambda: ledger.under_way("p0_g0", 1),
        lambda: ledger.under_way("p9_g9", 0),
        lambda: ledger.finish("p0_g0", 1, reward=1, result_digest=SHA, staging_keys=[]),
        lambda: ledger.next_run("p0_g0", 3),
        lambda: ledger.fail("p0_g0", 1, "code"),
        lambda: ledger.reserve("p0_g0", "agent", 1),
    ):
        with pytest.raises(ValueError):
            again()
    assert [run.incarnation for run in ledger["p0_g0"].runs] == [1, 2]


async def test_waiting_for_what_is_owed_ends_with_the_last_of_the_watched() -> None:
    ledger = RecoveryLedger()
    for rollout_id in ("a", "b"):
        ledger.reserve(rollout_id, "agent", 1)
        ledger.finish(rollout_id, 0, reward=1, result_digest=SHA, staging_keys=[])
    one = asyncio.create_task(ledger.wait_paid(["a"]))
    every = asyncio.create_task(ledger.wait_paid())
    ledger.paid("b", "f" * 64)  # another digest pays nothing
    assert len(ledger.owed()) == 2
    ledger.paid("a", SHA)
    await asyncio.sleep(0.01)
    assert one.done() and not every.done()
    ledger.paid("b", SHA)
    async with asyncio.timeout(1):
        await every
    assert not ledger.owed() and not ledger["b"].owed
