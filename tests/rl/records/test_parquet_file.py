"""RL's Parquet files: read back as written, or refused with the file named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym.protocol import UnsupportedSchema, Wire
from rl.errors import SnapshotDamaged
from rl.records import parquet_file

FILE = "rl/numbers.parquet"
SCHEMA = pa.schema([pa.field("number", pa.int64())])


class Number(Wire):
    number: int


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def test_records_come_back_in_order() -> None:
    records = [Number(number=number) for number in (3, 1, 2)]
    data = parquet_file.encode(FILE, SCHEMA, records)
    assert parquet_file.decode(FILE, SCHEMA, Number, data) == records


def test_the_file_of_another_name_or_version_is_refused() -> None:
    """Break: rl/records/parquet_file.py: do not look at the header."""
    data = parquet_file.encode("rl/others.parquet", SCHEMA, [Number(number=1)])
    with pytest.raises(SnapshotDamaged) as caught:
        parquet_file.decode(FILE, SCHEMA, Number, data)
    assert caught.value.details == {"file": FILE}
    header = json.dumps({"file": FILE, "schema_version": 2}).encode()
    table = pq.read_table(pa.BufferReader(data)).replace_schema_metadata({b"turnpoint": header})
    with pytest.raises(UnsupportedSchema):
        parquet_file.decode(FILE, SCHEMA, Number, _bytes(table))


def test_a_record_that_does_not_parse_names_its_field_and_not_its_value() -> None:
    schema = pa.schema([pa.field("number", pa.string())])
    header = json.dumps({"file": FILE, "schema_version": 1}).encode()
    table = pa.Table.from_pylist(
        [{"number": "s3cret"}], schema=schema.with_metadata({b"turnpoint": header})
    )
    with pytest.raises(SnapshotDamaged, match="a record does not parse: number") as caught:
        parquet_file.decode(FILE, schema, Number, _bytes(table))
    assert "s3cret" not in str(caught.value)
