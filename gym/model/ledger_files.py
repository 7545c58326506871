"""The policy model server's files: `ledger.parquet` and `token_storage_index.parquet`.

Guarantees: what is read back is what was written, row for row, or an error that names the
file. Anyone can open them: plain columns, one row a model call.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gym.protocol import (
    SCHEMA_VERSION,
    LedgerRow,
    StagingCoordinates,
    StorageReference,
    UnsupportedSchema,
)

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
    rows = []
    for flat in _read(path, _LEDGER_SCHEMA):
        coordinates = {name: flat.pop(column) for column, name in _COORDINATES.items()}
        try:
            parsed = StagingCoordinates.model_validate(coordinates)
            rows.append(LedgerRow.model_validate(flat | {"coordinates": parsed}))
        except ValidationError:
            raise UnsupportedSchema(f"{path.name} holds a row that does not parse") from None
    return rows


def read_index(path: Path) -> list[StorageReference]:
    """Read `token_storage_index.parquet`; raises like `read_ledger`."""
    try:
        return [StorageReference.model_validate(row) for row in _read(path, _INDEX_SCHEMA)]
    except ValidationError:
        raise UnsupportedSchema(f"{path.name} holds a row that does not parse") from None


def _read(path: Path, schema: pa.Schema) -> list[dict[str, object]]:
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
    except pa.ArrowInvalid:
        raise UnsupportedSchema(f"{path.name} is not a Parquet file") from None
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if not table.schema.equals(schema) or version != str(SCHEMA_VERSION).encode():
        raise UnsupportedSchema(f"{path.name} has columns or a schema version not known here")
    rows: list[dict[str, object]] = table.to_pylist()
    return rows
