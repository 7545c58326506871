"""The loader: prompts of a JSONL file of NeMo Gym rows, in order, over epochs (design section 7).

Guarantees: prompt `p<k>` is row `k % rows` of the dataset in epoch `k // rows`, its rollouts
are `p<k>_g<j>`; `next()` gives each exactly once, so a loader that goes on from a saved place
skips none and repeats none (invariant 6). A dataset that changed since the save is refused by
its digest. Rows are not saved: they are read from the dataset again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.protocol import SCHEMA_VERSION, UnsupportedSchema, Wire, canonical_json
from gym.protocol.records import Sha256
from rl.errors import DatasetInvalid, SnapshotDamaged, TopologyMismatch
from rl.messages import Workload

LOADER_FILE = "rl/loader.json"


class LoaderPlace(Wire):
    """The content of `rl/loader.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    workload: Workload
    place: int = Field(ge=0)
    """Rollouts given out so far."""
    dataset_sha256: Sha256

    def encode(self) -> bytes:
        """The file's bytes."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def decode(cls, data: bytes) -> LoaderPlace:
        """Read the file, strictly.

        Raises:
            UnsupportedSchema: It was written by another version.
            SnapshotDamaged: It does not parse, or a field is missing or too much.
        """
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if isinstance(found, dict) and found.get("schema_version") != SCHEMA_VERSION:
            raise UnsupportedSchema(f"{LOADER_FILE} has another schema version")
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            fields = sorted({".".join(map(str, item["loc"])) for item in error.errors()})
            raise SnapshotDamaged(
                f"{LOADER_FILE} does not parse: {', '.join(fields)}", details={"file": LOADER_FILE}
            ) from None


class _CreateParams(BaseModel):
    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    input: str | list[Any]


class _AgentRef(BaseModel):
    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    name: str


class _Row(BaseModel):
    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    responses_create_params: _CreateParams
    agent_ref: _AgentRef | None = None


class Prompt(Wire):
    """One rollout to be run."""

    rollout_id: str
    row: dict[str, Any]

    @property
    def agent(self) -> str | None:
        """The agent that the row asks for, if it names one."""
        return _agent_of(self.row)


class Loader:
    """Gives the rollouts of a workload out, one after the other. No I/O once it is built."""

    def __init__(self, workload: Workload, rows: dict[int, dict[str, Any]], sha256: str) -> None:
        """Build it at its start, from rows by line number; use `open` or `resume`."""
        self.workload = workload
        self.dataset_sha256 = sha256
        self._rows = list(rows.values())
        self._lines = list(rows)
        self._next = 0

    @classmethod
    def open(cls, workload: Workload) -> Loader:
        """Read and validate the dataset. Blocks on the disk: call it in a thread.

        Raises:
            DatasetInvalid: The file is missing, or a row does not parse; `file:line` is named,
                never the row.
        """
        return cls(workload, *_read(workload.dataset))

    @classmethod
    def resume(cls, saved: LoaderPlace) -> Loader:
        """Go on from a saved place. Blocks on the disk: call it in a thread.

        Raises:
            DatasetInvalid: As for `open`.
            TopologyMismatch: The dataset is not the one of the save.
            SnapshotDamaged: The place lies beyond the dataset's end.
        """
        loader = cls.open(saved.workload)
        if loader.dataset_sha256 != saved.dataset_sha256:
            raise TopologyMismatch(
                f"dataset {saved.workload.dataset} has changed since the snapshot",
                details={
                    "differences": [
                        f"dataset_sha256: {saved.dataset_sha256} -> {loader.dataset_sha256}"
                    ]
                },
            )
        if saved.place > loader.total:
            raise SnapshotDamaged(
                f"{LOADER_FILE}: the place lies beyond the dataset's end",
                details={"file": LOADER_FILE},
            )
        loader._next = saved.place
        return loader

    @property
    def place(self) -> LoaderPlace:
        """What a snapshot keeps of it."""
        return LoaderPlace(
            workload=self.workload, place=self._next, dataset_sha256=self.dataset_sha256
        )

    @property
    def semantic(self) -> dict[str, Any]:
        """What changes the meaning of a rollout, for the topology."""
        return {
            "dataset_sha256": self.dataset_sha256,
            "generations": self.workload.generations,
            "epochs": self.workload.epochs,
        }

    @property
    def total(self) -> int:
        """Rollouts over all epochs."""
        return len(self._rows) * self.workload.epochs * self.workload.generations

    def demand_agents(self, agents: list[str]) -> None:
        """Refuse rows that no agent of the job is for.

        Args:
            agents: Names of the job's agents. The only one takes rows that name none.

        Raises:
            DatasetInvalid: `file:line` of the first such row, the agent it names, and `agents`.
        """
        for line, row in zip(self._lines, self._rows, strict=True):
            named = _agent_of(row)
            if named in agents or (named is None and len(agents) == 1):
                continue
            wanted = "names no agent" if named is None else f"is for the agent {named!r}"
            raise DatasetInvalid(
                f"{self.workload.dataset}:{line}: the row {wanted}; this job has: "
                f"{', '.join(agents) or 'none'}. Name one of them in the row's `agent_ref.name`, "
                "or give the job that agent (`servers`)"
            )

    def next(self) -> Prompt | None:
        """The next rollout, or None at the end. Call it inside a barrier section."""
        if self._next >= self.total:
            return None
        prompt = self.prompt(self._id(self._next))
        self._next += 1
        return prompt

    def given(self) -> list[str]:
        """Ids of the rollouts given out so far, in order."""
        return [self._id(index) for index in range(self._next)]

    def prompt(self, rollout_id: str) -> Prompt:
        """A rollout that was given out, with its row.

        Raises:
            KeyError: The dataset has no such rollout.
        """
        prompt, _, generation = rollout_id.partition("_")
        index = int(prompt[1:]) * self.workload.generations + int(generation[1:])
        if self._id(index) != rollout_id or index >= self.total:
            raise KeyError(rollout_id)
        row = self._rows[int(prompt[1:]) % len(self._rows)]
        return Prompt(rollout_id=rollout_id, row=row)

    def group(self, rollout_id: str) -> tuple[str, list[str]]:
        """The group (prompt id) of a rollout, and all its rollouts."""
        prompt = rollout_id.partition("_")[0]
        return prompt, [f"{prompt}_g{j}" for j in range(self.workload.generations)]

    def _id(self, index: int) -> str:
        prompt, generation = divmod(index, self.workload.generations)
        return f"p{prompt}_g{generation}"


def _agent_of(row: dict[str, Any]) -> str | None:
    reference = row.get("agent_ref")
    return str(reference["name"]) if isinstance(reference, dict) else None


def _read(path: Path) -> tuple[dict[int, dict[str, Any]], str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetInvalid(f"{path}: {error.strerror}") from None
    lines = enumerate(data.splitlines(), 1)
    rows = {number: _row(path, number, line) for number, line in lines if line.strip()}
    if not rows:
        raise DatasetInvalid(f"{path}: no rows")
    return rows, hashlib.sha256(data).hexdigest()


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        # As it is sent to an agent: what Python reads besides JSON (NaN, half a character, a
        # number beyond all) would fail there, when the job runs.
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # its text would quote the row
        raise DatasetInvalid(f"{path}:{number}: not JSON") from None
    try:
        _Row.model_validate(row)
    except ValidationError as error:
        fields = sorted({".".join(map(str, item["loc"])) or "row" for item in error.errors()})
        raise DatasetInvalid(f"{path}:{number}: {', '.join(fields)}") from None
    return dict(row)
