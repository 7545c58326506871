"""What the Single Controller works with, as it sees it: tests inject others.

`DataPlane` and `SnapshotFolder` satisfy these as they are; `rl.controller.actor` puts the
incarnation in front of the calls of the two actors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gym.lease import lease_clock
from gym.protocol import Status, WrittenFile
from rl.data_plane.rows import StagingRow, TrainingRow
from rl.messages import Inventory, RunRequest, RunResult, ServerReport


class DataPlanePort(Protocol):
    """TransferQueue, by key."""

    async def get_staging(self, keys: Iterable[str]) -> dict[str, StagingRow]:
        """Rows by key; missing ones are absent."""

    async def put_training(self, rollout_id: str, row: TrainingRow, tag: dict[str, Any]) -> None:
        """Store one finished rollout; readable on return."""

    async def keys(self, partition: str) -> set[str]:
        """Every key of a partition."""

    async def clear(self, partition: str, keys: Iterable[str]) -> None:
        """Remove rows; unknown keys are no error."""

    async def reset_claims(self, partition: str) -> None:
        """Forget what was claimed by whom."""


class HostPort(Protocol):
    """The actor that hosts TransferQueue."""

    async def save(self, folder: str) -> list[WrittenFile]:
        """Save everything below `<folder>/data_plane/`; on disk on return."""


class GymPort(Protocol):
    """The NemoGym actor of this incarnation."""

    async def run(self, request: RunRequest) -> RunResult:
        """Send a run and wait for its end, through any number of saves."""

    async def acknowledge(
        self, rollout_id: str, attempt_index: int, digest: str, agent: str
    ) -> None:
        """Tell the agent that a result is RL's own."""

    async def let_go(self, rollout_id: str, agent: str) -> None:
        """Have the agent drop the run, or result, that RL counts as failed."""

    async def forget(self, rollout_id: str, agent: str) -> None:
        """Have every server drop what it holds of a rollout that has failed for good."""

    async def status(self) -> list[Status]:
        """Status of every server that has the control routes."""

    async def inventory(self, checkpoint_id: str) -> Inventory:
        """What the servers answered at commit."""

    async def confirm_held(self, checkpoint_id: str) -> list[ServerReport]:
        """Every server still has this checkpoint, or the error that names one without."""

    async def restored_inventory(self, restore_id: str) -> Inventory:
        """What the servers answered at restore."""

    async def discard(self, restore_id: str, rollout_ids: list[str]) -> None:
        """Drop what was restored of these rollouts."""


class FolderPort(Protocol):
    """The job's snapshot folder. Every method blocks on the disk: call it in a thread."""

    def reserve(self, checkpoint_id: str, incarnation: int) -> tuple[str, str]:
        """Sweep, and create the tmp folder: its name and that of the snapshot to be."""

    def discard(self, checkpoint_id: str) -> list[str]:
        """Rename this checkpoint's tmp folder to trash."""

    def make_room(self, incarnation: int) -> None:
        """Delete what other saves left unpublished."""

    def newest_bytes(self) -> int:
        """What the newest snapshot takes on disk, all parts of it; 0 without one."""

    def free_bytes(self) -> int:
        """Free space below the snapshot root."""


@dataclass(frozen=True)
class Collaborators:
    """All of them, and the clocks (seconds, never going back)."""

    data_plane: DataPlanePort
    host: HostPort
    gym: GymPort
    folder: FolderPort
    clock: Callable[[], float] = time.monotonic
    """Measures the pause."""
    lease_clock: Callable[[], float] = lease_clock
