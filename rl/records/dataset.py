"""The dataset of a job: a JSONL file of NeMo Gym rows.

Guarantees: a row that an agent could not be sent is refused before the job runs, by `file:line`;
no row's content is in an error.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from rl.errors import DatasetInvalid
from rl.records.damage import fields_of

Row = dict[str, Any]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)


class _CreateParams(_Open):
    input: str | list[Any]


class _AgentRef(_Open):
    name: str


class _Row(_Open):
    responses_create_params: _CreateParams
    agent_ref: _AgentRef | None = None


class Dataset(NamedTuple):
    """All rows of one file."""

    path: Path
    rows: dict[int, Row]
    """By line number, from 1, in order."""
    sha256: str
    """Digest (hex) of the file."""

    def require_agents(self, agents: list[str]) -> None:
        """Refuse rows for an agent that the job does not have.

        Args:
            agents: Names of the job's agents. A single one also takes rows that name none.

        Raises:
            DatasetInvalid: `file:line` of the first such row, the agent it names, and `agents`.
        """
        for line, row in self.rows.items():
            named = agent_of(row)
            if named in agents or (named is None and len(agents) == 1):
                continue
            asks = "names no agent" if named is None else f"is for the agent {named!r}"
            raise DatasetInvalid(
                f"{self.path}:{line}: the row {asks}; this job has: "
                f"{', '.join(agents) or 'none'}. Name one of them in the row's `agent_ref.name`, "
                "or give the job that agent (`servers`)"
            )


def read_dataset(path: Path) -> Dataset:
    """Read and validate a dataset. Blocks on the disk: call it in a thread.

    Raises:
        DatasetInvalid: The file is missing or has no rows, or a row does not parse (`file:line`).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetInvalid(f"{path}: {error.strerror}") from None
    lines = enumerate(data.splitlines(), 1)
    rows = {number: _row(path, number, line) for number, line in lines if line.strip()}
    if not rows:
        raise DatasetInvalid(f"{path}: no rows")
    return Dataset(path, rows, hashlib.sha256(data).hexdigest())


def agent_of(row: Row) -> str | None:
    """Name of the agent that a row asks for, if it names one."""
    reference = row.get("agent_ref")
    return str(reference["name"]) if isinstance(reference, dict) else None


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
        # In the form in which it is sent to an agent: Python reads values that JSON cannot hold
        # (NaN, half a character, a number that is too large), and sending them would fail.
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # the error's text would quote the row
        raise DatasetInvalid(f"{path}:{number}: not JSON") from None
    try:
        _Row.model_validate(row)
    except ValidationError as error:
        raise DatasetInvalid(f"{path}:{number}: {fields_of(error)}") from None
    return dict(row)
