"""TransferQueue's two partitions for the in-process twin: dictionaries, saved as one file."""

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


class RowsHere:
    """The rows of one life.

    Args:
        moment: Awaited before and after each access.
    """

    def __init__(self, moment: Callable[[str], Awaitable[None]]) -> None:
        """Empty."""
        self.rows: dict[str, dict[str, Any]] = {STAGING: {}, TRAINING: {}}
        self.tags: dict[str, dict[str, Any]] = {}
        self.claimed: set[str] = set()
        """Training rows that a consumer has fetched; saved and loaded with the rows."""
        self._moment = moment

    async def put_staging(self, key: str, row: StagingRow) -> None:
        await self._moment("put_staging begins")
        assert key not in self.rows[STAGING], f"{key} is staged twice"
        self.rows[STAGING][key] = row
        await self._moment("put_staging ends")

    async def get_staging(self, keys: Iterable[str]) -> dict[str, StagingRow]:
        staged = self.rows[STAGING]
        return {key: staged[key] for key in keys if key in staged}

    async def put_training(self, rollout_id: str, row: TrainingRow, tag: dict[str, Any]) -> None:
        await self._moment("put_training begins")
        assert rollout_id not in self.rows[TRAINING], f"{rollout_id} has a row already"
        self.rows[TRAINING][rollout_id], self.tags[rollout_id] = row, tag
        await self._moment("put_training ends")

    async def keys(self, partition: str) -> set[str]:
        await self._moment(f"keys of {partition}")
        return set(self.rows[partition])

    async def clear(self, partition: str, keys: Iterable[str]) -> None:
        await self._moment(f"clear {partition} begins")
        for key in list(keys):
            self.rows[partition].pop(key, None)
        await self._moment(f"clear {partition} ends")

    async def reset_claims(self, partition: str) -> None:
        await self._moment("reset_claims")
        self.claimed.clear()

    async def claim(self, wanted: Callable[[set[str]], set[str]]) -> list[str]:
        """Fetch what no consumer has fetched: those of it that `wanted` answers."""
        await self._moment("claim begins")
        found = wanted(set(self.rows[TRAINING]) - self.claimed)
        self.claimed |= found
        await self._moment("claim ends")
        return sorted(found)

    async def save(self, folder: Path) -> list[WrittenFile]:
        """Save everything below a checkpoint folder."""
        await self._moment("save of rows begins")
        path = folder / ROWS_FILE
        path.parent.mkdir(exist_ok=True)
        write_durably(path, pickle.dumps((self.rows, self.tags, self.claimed)))
        size, sha256 = digest_of_file(path)
        await self._moment("save of rows ends")
        return [WrittenFile(path=ROWS_FILE, bytes=size, sha256=sha256)]

    async def load(self, folder: Path) -> int:
        """Load what a snapshot holds, its claims included: the controller resets them."""
        self.rows, self.tags, self.claimed = pickle.loads((folder / ROWS_FILE).read_bytes())
        await self._moment("load of rows ends")
        return sum(map(len, self.rows.values()))
