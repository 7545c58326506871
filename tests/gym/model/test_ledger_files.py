"""The ledger's files give back its rows, and refuse others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym.model.ledger import references
from gym.model.ledger_files import index_table, ledger_table, read_index, read_ledger
from gym.protocol import (
    UnsupportedSchema,
)
from tests.gym.ledger_rows import row


def test_the_files_give_back_the_rows(tmp_path: Path) -> None:
    rows = [row(0), row(1), row(0, rollout="p1_g0", attempt=2)]
    pq.write_table(ledger_table(rows), tmp_path / "ledger.parquet")
    pq.write_table(index_table(references(rows)), tmp_path / "index.parquet")
    assert read_ledger(tmp_path / "ledger.parquet") == rows
    assert read_index(tmp_path / "index.parquet") == references(rows)


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
