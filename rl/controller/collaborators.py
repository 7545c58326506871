"""The Single Controller's collaborators: data plane, other actors, snapshot folder, clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym.lease import lease_clock
from rl.data_plane.client import DataPlaneHostClient
from rl.nemo_gym.client import NemoGymClient
from rl.snapshots.folder import SnapshotFolder

if TYPE_CHECKING:  # importing it imports torch, for seconds
    from rl.data_plane.transfer_queue import DataPlane


@dataclass(frozen=True)
class Collaborators:
    """All of them, and the clocks (seconds, never going back)."""

    data_plane: DataPlane
    host: DataPlaneHostClient
    gym: NemoGymClient
    folder: SnapshotFolder
    clock: Callable[[], float] = time.monotonic
    """Measures the pause of a save."""
    lease_clock: Callable[[], float] = lease_clock
