"""The loader: gives out the rollouts of a dataset, in order, over epochs (design section 7).

Guarantees: prompt `p<k>` is row `k % rows` of the dataset in epoch `k // rows`, its rollouts
are `p<k>_g<j>`; `next()` gives each exactly once, so a loader that goes on from a saved place
skips none and repeats none (invariant 6). A dataset that changed since the save is refused by
its digest. Rows are not saved: they are read from the dataset again.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from gym.protocol import SCHEMA_VERSION, UnsupportedSchema, Wire, canonical_json, parse_json
from gym.protocol.records import Sha256
from rl.config import Workload
from rl.errors import TopologyMismatch
from rl.records.damage import damaged, fields_of
from rl.records.dataset import Dataset, Row, agent_of, read_dataset

LOADER_FILE = "rl/loader.json"


class LoaderPlace(Wire):
    """The content of `rl/loader.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    workload: Workload
    place: int = Field(ge=0)
    """Number of rollouts given out."""
    dataset_sha256: Sha256

    def encode(self) -> bytes:
        """The file's bytes."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def decode(cls, data: bytes) -> LoaderPlace:
        """Read the file, strictly.

        Raises:
            UnsupportedSchema: It was written by another version.
            SnapshotDamaged: It does not parse, or a field is missing or unknown.
        """
        try:
            found = parse_json(data)
        except ValueError:
            found = None
        if isinstance(found, dict) and found.get("schema_version") != SCHEMA_VERSION:
            raise UnsupportedSchema(f"{LOADER_FILE} has another schema version")
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            raise damaged(LOADER_FILE, f"does not parse: {fields_of(error)}") from None


class Prompt(Wire):
    """One rollout to be run."""

    rollout_id: str
    row: Row

    @property
    def agent(self) -> str | None:
        """Name of the agent that the row asks for, if it names one."""
        return agent_of(self.row)


class Loader:
    """Gives out the rollouts of a workload, one after the other. No I/O after construction.

    Args:
        workload: The rollouts to be made of the dataset.
        dataset: Its rows.
        place: Number of rollouts that were given out before.
    """

    def __init__(self, workload: Workload, dataset: Dataset, place: int = 0) -> None:
        self.workload = workload
        self.dataset = dataset
        self._rows = list(dataset.rows.values())
        self._next = place

    @classmethod
    def open(cls, workload: Workload) -> Loader:
        """Begin at the first rollout. Blocks on the disk: call it in a thread.

        Raises:
            DatasetInvalid: As `read_dataset`.
        """
        return cls(workload, read_dataset(workload.dataset))

    @classmethod
    def resume(cls, saved: LoaderPlace) -> Loader:
        """Go on from a saved place. Blocks on the disk: call it in a thread.

        Raises:
            DatasetInvalid: As `read_dataset`.
            TopologyMismatch: The dataset is not the one of the save.
            SnapshotDamaged: The place lies beyond the dataset's end.
        """
        loader = cls(saved.workload, read_dataset(saved.workload.dataset), saved.place)
        if loader.dataset.sha256 != saved.dataset_sha256:
            change = f"dataset_sha256: {saved.dataset_sha256} -> {loader.dataset.sha256}"
            raise TopologyMismatch(
                f"dataset {saved.workload.dataset} has changed since the snapshot",
                details={"differences": [change]},
            )
        if saved.place > loader.total:
            raise damaged(LOADER_FILE, "the place lies beyond the dataset's end")
        return loader

    @property
    def place(self) -> LoaderPlace:
        """Its state for a snapshot."""
        return LoaderPlace(
            workload=self.workload, place=self._next, dataset_sha256=self.dataset.sha256
        )

    @property
    def semantic(self) -> dict[str, Any]:
        """Configuration that changes the meaning of a rollout, for the topology."""
        return {
            "dataset_sha256": self.dataset.sha256,
            "generations": self.workload.generations,
            "epochs": self.workload.epochs,
        }

    @property
    def total(self) -> int:
        """Number of rollouts over all epochs."""
        return len(self._rows) * self.workload.epochs * self.workload.generations

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
        """The group (prompt id) of a rollout, and all rollouts of that group."""
        prompt = rollout_id.partition("_")[0]
        return prompt, [f"{prompt}_g{j}" for j in range(self.workload.generations)]

    def _id(self, index: int) -> str:
        prompt, generation = divmod(index, self.workload.generations)
        return f"p{prompt}_g{generation}"
