"""RL's own Parquet files: they carry a schema version and are read strictly.

Guarantees: `decode` gives back exactly what `encode` got, or raises naming the file: another
version, another schema (a column missing, unknown or of another type), or a record that does
not parse. Digests are checked by the caller.
"""

from __future__ import annotations

import json
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gym.protocol import SCHEMA_VERSION, UnsupportedSchema, Wire
from rl.records.damage import damaged, fields_of

_KEY = b"turnpoint"
RecordT = TypeVar("RecordT", bound=Wire)


def encode(path: str, schema: pa.Schema, records: list[RecordT]) -> bytes:
    """The bytes of a Parquet file that holds `records`; `path` names it inside a snapshot."""
    header = json.dumps({"file": path, "schema_version": SCHEMA_VERSION}).encode()
    table = pa.Table.from_pylist(
        [record.model_dump(mode="json") for record in records],
        schema=schema.with_metadata({_KEY: header}),
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def decode(path: str, schema: pa.Schema, kind: type[RecordT], data: bytes) -> list[RecordT]:
    """Read the file `path` back, strictly.

    Raises:
        UnsupportedSchema: It was written by another version.
        SnapshotDamaged: It is another file, has another schema, or a record does not parse.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
        header = json.loads((table.schema.metadata or {}).get(_KEY, b"null"))
    except (pa.ArrowException, ValueError, OSError):
        raise damaged(path, "not a Parquet file of Turnpoint") from None
    if not isinstance(header, dict) or header.get("file") != path:
        raise damaged(path, "another file of Turnpoint")
    if header.get("schema_version") != SCHEMA_VERSION:
        raise UnsupportedSchema(f"{path} has another schema version", details={"file": path})
    if not table.schema.remove_metadata().equals(schema):
        raise damaged(path, "columns are missing, unknown or of another type")
    try:
        return [kind.model_validate(record) for record in table.to_pylist()]
    except ValidationError as error:
        raise damaged(path, f"a record does not parse: {fields_of(error)}") from None
