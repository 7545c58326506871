"""TransferQueue as two dictionaries, saved as one file; a crash may come at each access."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from gym.durable import digest_of_file, write_durably
from gym.protocol import WrittenFile
from rl.data_plane.names import STAGING, TRAINING
from rl.data_plane.rows import StagingRow, TrainingRow

ROWS_FILE = "data_plane/rows.bin"


class FakeDataPlane:
    """The rows of one execution.

    Args:
        on_step: Awaited before and after each access, with the step's name.
    """

    def __init__(self, on_step: Callable[[str], Awaitable[None]]) -> None:
        self.rows: dict[str, dict[str, Any]] = {STAGING: {}, TRAINING: {}}
        self.tags: dict[str, dict[str, Any]] = {}
        self.claimed: set[str] = set()
        """Training rows that a consumer has fetched; saved and loaded with the rows."""
        self._on_step = on_step

    async def put_staging(self, key: str, row: StagingRow) -> None:
        await self._on_step("put_staging begins")
        assert key not in self.rows[STAGING], f"{key} is staged twice"
        self.rows[STAGING][key] = row
        await self._on_step("put_staging ends")

    async def get_staging(self, keys: Iterable[str]) -> dict[str, StagingRow]:
        staged = self.rows[STAGING]
        return {key: staged[key] for key in keys if key in staged}

    async def put_training(self, rollout_id: str, row: TrainingRow, tag: dict[str, Any]) -> None:
        await self._on_step("put_training begins")
        assert rollout_id not in self.rows[TRAINING], f"{rollout_id} has a row already"
        self.rows[TRAINING][rollout_id], self.tags[rollout_id] = row, tag
        await self._on_step("put_training ends")

    async def keys(self, partition: str) -> set[str]:
        await self._on_step(f"keys of {partition}")
        return set(self.rows[partition])

    async def clear(self, partition: str, keys: Iterable[str]) -> None:
        await self._on_step(f"clear {partition} begins")
        for key in list(keys):
            self.rows[partition].pop(key, None)
        await self._on_step(f"clear {partition} ends")

    async def reset_claims(self, partition: str) -> None:
        await self._on_step("reset_claims")
        self.claimed.clear()

    async def claim(self, wanted: Callable[[set[str]], set[str]]) -> list[str]:
        """Fetch those of the unclaimed rows that `wanted` chooses; each is fetched once."""
        await self._on_step("claim begins")
        found = wanted(set(self.rows[TRAINING]) - self.claimed)
        self.claimed |= found
        await self._on_step("claim ends")
        return sorted(found)

    async def save(self, folder: Path) -> list[WrittenFile]:
        """Save everything below a checkpoint folder."""
        await self._on_step("save of rows begins")
        path = folder / ROWS_FILE
        path.parent.mkdir(exist_ok=True)
        write_durably(path, pickle.dumps((self.rows, self.tags, self.claimed)))
        size, sha256 = digest_of_file(path)
        await self._on_step("save of rows ends")
        return [WrittenFile(path=ROWS_FILE, bytes=size, sha256=sha256)]

    async def load(self, folder: Path) -> int:
        """Load a snapshot, the claims included: the controller resets them."""
        self.rows, self.tags, self.claimed = pickle.loads((folder / ROWS_FILE).read_bytes())
        await self._on_step("load of rows ends")
        return sum(map(len, self.rows.values()))
