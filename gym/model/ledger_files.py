"""The policy model server's files: `ledger.parquet` and `token_storage_index.parquet`.

Guarantees: the rows that are read back are those that were written, or an error names the file.
Other tools can read them: plain columns, one row a model call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gym.protocol import (
    SCHEMA_VERSION,
    LedgerRow,
    StorageReference,
    UnsupportedSchema,
)

R = TypeVar("R")
LEDGER_FILE = "ledger.parquet"
INDEX_FILE = "token_storage_index.parquet"
_VERSION_KEY = b"turnpoint.schema_version"

_COORDINATES = {
    "staging_key": "key",
    "prompt_length": "prompt_length",
    "generation_length": "generation_length",
    "staging_sha256": "sha256",
    "weight_version": "weight_version",
    "parent_staging_key": "parent_key",
}
"""Column -> field of `StagingCoordinates`."""

_TEXT = (
    "rollout_id",
    "capture_key",
    "model_call_id",
    "parent_model_call_id",
    "request_sha256",
    "staging_key",
    "staging_sha256",
    "weight_version",
    "parent_staging_key",
)
_NUMBERS = ("attempt_index", "incarnation", "prompt_length", "generation_length")
_METADATA: dict[bytes | str, bytes | str] = {_VERSION_KEY: str(SCHEMA_VERSION).encode()}
_LEDGER_SCHEMA = pa.schema(
    {name: pa.string() for name in _TEXT} | {name: pa.int64() for name in _NUMBERS},
    metadata=_METADATA,
)
_INDEX_SCHEMA = pa.schema(
    {name: pa.string() for name in ("rollout_id", "model_call_id", "key")}, metadata=_METADATA
)


def ledger_table(rows: Iterable[LedgerRow]) -> pa.Table:
    """The ledger as one flat table."""
    flat = []
    for row in rows:
        plain = row.model_dump(mode="json")
        coordinates = plain.pop("coordinates")
        flat.append(plain | {column: coordinates[name] for column, name in _COORDINATES.items()})
    return pa.Table.from_pylist(flat, schema=_LEDGER_SCHEMA)


def index_table(references: Iterable[StorageReference]) -> pa.Table:
    """The token-storage index as a table."""
    return pa.Table.from_pylist(
        [reference.model_dump(mode="json") for reference in references], schema=_INDEX_SCHEMA
    )


def read_ledger(path: Path) -> list[LedgerRow]:
    """Read `ledger.parquet`.

    Raises:
        UnsupportedSchema: Another schema version, or rows that do not parse.
    """

    def row(flat: dict[str, Any]) -> LedgerRow:
        coordinates = {name: flat.pop(column) for column, name in _COORDINATES.items()}
        return LedgerRow.model_validate(flat | {"coordinates": coordinates})

    return _read(path, _LEDGER_SCHEMA, row)


def read_index(path: Path) -> list[StorageReference]:
    """Read `token_storage_index.parquet`; raises like `read_ledger`."""
    return _read(path, _INDEX_SCHEMA, StorageReference.model_validate)


def _read(path: Path, schema: pa.Schema, parse: Callable[[dict[str, Any]], R]) -> list[R]:
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
    except pa.ArrowInvalid:
        raise UnsupportedSchema(f"{path.name} is not a Parquet file") from None
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if not table.schema.equals(schema) or version != str(SCHEMA_VERSION).encode():
        raise UnsupportedSchema(f"{path.name} has columns or a schema version not known here")
    try:
        return [parse(row) for row in table.to_pylist()]
    except ValidationError:
        raise UnsupportedSchema(f"{path.name} holds a row that does not parse") from None
