"""The ledger and its files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym.checkpoint.phases import Phases
from gym.model.generation_client import GenerationEndpoint
from gym.model.ledger import Ledger, reachable, references
from gym.model.ledger_files import index_table, ledger_table, read_index, read_ledger
from gym.model.part import ModelPart
from gym.protocol import (
    Continuation,
    DigestMismatch,
    IdentityMismatch,
    InvalidRequest,
    LedgerRow,
    RequestConflict,
    Role,
    SessionLost,
    StagingCoordinates,
    StorageReference,
    UnsupportedSchema,
    WrittenFile,
    capture_key,
    staging_key,
)


def row(index: int, *, rollout: str = "p0_g0", attempt: int = 0, digest: str = "a") -> LedgerRow:
    key = capture_key(rollout, attempt)
    parent = f"call-{index - 1}" if index else None
    return LedgerRow(
        rollout_id=rollout,
        attempt_index=attempt,
        capture_key=key,
        incarnation=1,
        model_call_id=f"call-{index}",
        parent_model_call_id=parent,
        request_sha256=digest * 64,
        coordinates=StagingCoordinates(
            key=staging_key(1, key, f"call-{index}"),
            prompt_length=10 + index,
            generation_length=3,
            sha256="b" * 64,
            weight_version="v0",
            parent_key=staging_key(1, key, parent) if parent else None,
        ),
    )


def root(call: str | None, *, attempt: int = 0, key: str = "p0_g0") -> Continuation:
    return Continuation(
        rollout_id="p0_g0",
        attempt_index=attempt,
        capture_key=key,
        last_committed_model_call_id=call,
        resource_state_revisions={},
    )


def ledger_of(*rows: LedgerRow) -> Ledger:
    ledger = Ledger()
    for one in rows:
        ledger.begin_run(one.rollout_id, one.attempt_index)
        ledger.add(one)
    return ledger


def test_the_same_row_again_is_one_row_and_another_is_refused() -> None:
    ledger = ledger_of(row(0), row(0))
    assert len(ledger) == 1
    with pytest.raises(RequestConflict):
        ledger.add(row(0, digest="c"))


def test_a_call_follows_the_one_before() -> None:
    ledger = ledger_of(row(0))
    assert ledger.parent("p0_g0", "call-0") is None
    assert ledger.parent("p0_g0", "call-1") == row(0)
    with pytest.raises(IdentityMismatch):
        ledger.parent("p0_g0", "call-2")


def test_only_what_a_continuation_needs_is_kept() -> None:
    rows = ledger_of(row(0), row(1), row(2), row(0, rollout="p1_g0")).frozen()
    assert reachable(rows, [root("call-1")]) == [row(0), row(1)]
    assert reachable(rows, [root(None)]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        root("call-3"),
        root("call-1", attempt=1),
        root("call-1", key="p0_g0-a1"),
    ],
)
def test_an_index_that_the_ledger_does_not_know_is_an_error(wrong: Continuation) -> None:
    with pytest.raises(InvalidRequest) as caught:
        reachable(ledger_of(row(0), row(1)).frozen(), [wrong])
    assert caught.value.details["rollout_id"] == "p0_g0"


def test_restored_rows_belong_to_the_next_run_and_keep_who_made_them() -> None:
    ledger = Ledger()
    owned = ledger.install([row(0), row(1)])
    assert {one.attempt_index for one in owned} == {1}
    assert {one.capture_key for one in owned} == {"p0_g0"}
    assert ledger.manifest("p0_g0-a1").records == owned
    with pytest.raises(SessionLost):
        ledger.manifest("p0_g0")
    assert reachable(ledger.frozen(), [root("call-1", attempt=1)]) == owned


def test_dropped_rollouts_leave_nothing() -> None:
    ledger = ledger_of(row(0), row(0, rollout="p1_g0"))
    ledger.drop(["p0_g0", "unknown"])
    assert len(ledger) == 1
    with pytest.raises(SessionLost):
        ledger.manifest("p0_g0")


def test_the_files_give_back_the_rows(tmp_path: Path) -> None:
    rows = [row(0), row(1), row(0, rollout="p1_g0", attempt=2)]
    pq.write_table(ledger_table(rows), tmp_path / "ledger.parquet")
    pq.write_table(index_table(references(rows)), tmp_path / "index.parquet")
    assert read_ledger(tmp_path / "ledger.parquet") == rows
    assert read_index(tmp_path / "index.parquet") == references(rows)


def read_as_part(folder: Path, rows: list[LedgerRow], index: list[StorageReference]) -> object:
    pq.write_table(ledger_table(rows), folder / "ledger.parquet")
    pq.write_table(index_table(index), folder / "token_storage_index.parquet")
    endpoint = GenerationEndpoint("http://127.0.0.1:1/v1", participant="policy_model")
    files = [
        WrittenFile(path=name, bytes=1, sha256="0" * 64)
        for name in ("ledger.parquet", "token_storage_index.parquet")
    ]
    return ModelPart(Phases("policy_model"), endpoint, Role.POLICY).read(folder, files)


@pytest.mark.parametrize(
    "rows",
    [
        [row(1)],
        [row(0), row(2)],
        [row(1), row(0)],
        [row(0), row(1, attempt=1)],
        [row(0), row(0)],
    ],
)
def test_files_whose_calls_are_no_chain_are_refused(tmp_path: Path, rows: list[LedgerRow]) -> None:
    with pytest.raises(DigestMismatch, match=r"ledger\.parquet"):
        read_as_part(tmp_path, rows, references(rows))


def test_files_that_name_different_calls_are_refused(tmp_path: Path) -> None:
    rows = [row(0), row(1)]
    assert read_as_part(tmp_path, rows, references(rows)) == rows
    with pytest.raises(DigestMismatch, match="token_storage_index"):
        read_as_part(tmp_path, rows, references(rows[:1]))


def test_empty_files_have_their_columns(tmp_path: Path) -> None:
    pq.write_table(ledger_table([]), tmp_path / "ledger.parquet")
    assert read_ledger(tmp_path / "ledger.parquet") == []


def test_other_files_are_named_and_refused(tmp_path: Path) -> None:
    other = tmp_path / "ledger.parquet"
    other.write_bytes(b"no parquet")
    with pytest.raises(UnsupportedSchema, match=r"ledger\.parquet"):
        read_ledger(other)
    pq.write_table(pa.table({"rollout_id": ["p0_g0"]}), other)
    with pytest.raises(UnsupportedSchema):
        read_ledger(other)
    newer = ledger_table([row(0)]).replace_schema_metadata({"turnpoint.schema_version": "2"})
    pq.write_table(newer, other)
    with pytest.raises(UnsupportedSchema):
        read_ledger(other)
