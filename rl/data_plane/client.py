"""Typed calls of the actor `DataPlaneHost`, for activities and the Single Controller.

Guarantees: each method answers and raises as the actor's method of the same name, and as
`rl.actors.call`; it is one call, never repeated.
"""

from __future__ import annotations

from typing import cast

from gym.protocol import WrittenFile
from rl.actors import call
from rl.messages import DATA_PLANE_HOST


class DataPlaneHostClient:
    """The host of one incarnation; another incarnation's refuses with `StaleIncarnation`.

    Args:
        incarnation: Sent with each call, except `job_id`.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    @staticmethod
    async def job_id(*, timeout_s: float | None = None) -> str:
        """Name of the job whose data lies in this cluster."""
        return cast(str, await call(DATA_PLANE_HOST, "job_id", timeout_s=timeout_s))

    async def ping(self, *, timeout_s: float | None = None) -> None:
        """Return once TransferQueue runs."""
        await call(DATA_PLANE_HOST, "ping", self._incarnation, timeout_s=timeout_s)

    async def load(self, folder_abs: str, files: list[WrittenFile]) -> int:
        """Load the data plane of a snapshot; answers the number of rows."""
        return cast(int, await call(DATA_PLANE_HOST, "load", self._incarnation, folder_abs, files))

    async def save(self, folder_abs: str) -> list[WrittenFile]:
        """Save TransferQueue below `<folder_abs>/data_plane`; on disk on return."""
        answer = await call(DATA_PLANE_HOST, "save", self._incarnation, folder_abs)
        return cast(list[WrittenFile], answer)
