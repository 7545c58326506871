"""The Ray actor that owns TransferQueue: starts it, saves it, loads it.

Guarantees: TransferQueue lives exactly as long as this actor (detached; a driver that exits
takes nothing along). `save` returns only when every file and folder it wrote is synced, with the
digests of what is on disk. `load` compares sizes and digests of all files before anything is
unpickled; it runs once per instance, into an empty TransferQueue. The event loop is never
blocked: TransferQueue and the disk are used from a thread.

Writers are kept out during a save by the barrier, not here (design section 7). A load that failed
half way leaves TransferQueue in an unknown state: the instance then refuses every call until it is
killed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from gym.protocol import FolderOutsideRoot, InvalidPhase, StaleIncarnation, WrittenFile
from rl.actor_methods import require_incarnation
from rl.config import JobConfig
from rl.data_plane.files import DATA_PLANE_FOLDER, save_files, verify_files
from rl.data_plane.names import STAGING, TRAINING
from rl.errors import DataPlaneLost
from rl.messages import DATA_PLANE_HOST

if TYPE_CHECKING:
    from rl.data_plane.transfer_queue import DataPlane


class DataPlaneHost:
    """Owner of TransferQueue, for one incarnation. Make the actor with `data_plane_host`.

    Args:
        config: The job's configuration.
        incarnation: The one it belongs to; calls of another are refused.
    """

    def __init__(self, config: JobConfig, incarnation: int) -> None:
        self._config = config
        self._incarnation = incarnation
        self._lock = asyncio.Lock()
        self._starting: Future[DataPlane] = Future()  # an error in it reaches each caller
        threading.Thread(target=self._start, name="transfer-queue-start", daemon=True).start()
        self._loaded: tuple[tuple[str, Sequence[WrittenFile]], int] | None = None
        self._broken = False

    async def job_id(self) -> str:
        """Name of the job whose data this is; answered at once, whatever the incarnation."""
        return self._config.job_id

    async def ping(self, incarnation: int) -> None:
        """Answer once TransferQueue runs.

        Raises:
            StaleIncarnation: Another incarnation's call.
            DataPlaneLost: TransferQueue cannot run here, or a load has failed.
        """
        async with self._lock:
            await self._started(incarnation)

    async def load(self, incarnation: int, folder: str, files: list[WrittenFile]) -> int:
        """Load the data plane of a snapshot; the same call again gets the same answer.

        Args:
            incarnation: The caller's.
            folder: The snapshot folder, absolute.
            files: The manifest's files; those outside `data_plane/` are ignored.

        Returns:
            Number of rows loaded.

        Raises:
            DigestMismatch: A file is missing, damaged or too much; it is named, nothing was read
                into TransferQueue.
            InvalidPhase: TransferQueue is not empty, or something else was loaded before.
            FolderOutsideRoot: The folder is not the job's.
            StaleIncarnation: Another incarnation's call.
            DataPlaneLost: TransferQueue could not load the files.
        """
        async with self._lock:
            plane = await self._started(incarnation)
            own = [file for file in files if file.path.startswith(f"{DATA_PLANE_FOLDER}/")]
            if self._loaded is not None and self._loaded[0] == (folder, own):
                return self._loaded[1]
            if self._loaded is not None or await _rows(plane):
                raise InvalidPhase(
                    "TransferQueue is loaded once, before anything is in it",
                    participant=DATA_PLANE_HOST,
                )
            base = self._checked_folder(folder)
            await asyncio.to_thread(verify_files, base, own)
            import transfer_queue as tq  # by now `_start` has imported it

            try:
                await asyncio.to_thread(tq.load_checkpoint, base / DATA_PLANE_FOLDER)
                for partition in (STAGING, TRAINING):
                    await plane.reset_claims(partition)
                rows = await _rows(plane)
            except Exception as error:
                self._broken = True
                raise DataPlaneLost(
                    f"TransferQueue did not load the snapshot ({type(error).__name__})",
                    participant=DATA_PLANE_HOST,
                ) from error
            self._loaded = ((folder, own), rows)
            return rows

    async def save(self, incarnation: int, folder: str) -> list[WrittenFile]:
        """Save TransferQueue below `<folder>/data_plane`, synced; replaces an earlier try.

        One save runs at a time; a second waits for the first. A caller that goes away does not
        end it.

        Args:
            incarnation: The caller's.
            folder: The checkpoint folder, absolute; it must exist.

        Raises:
            FolderOutsideRoot: The folder is not the job's.
            Unpublished: The folder was renamed meanwhile; nothing is left under the old name.
            StaleIncarnation: Another incarnation's call.
            DataPlaneLost: TransferQueue failed.
        """
        return await asyncio.shield(asyncio.ensure_future(self._save(incarnation, folder)))

    async def _save(self, incarnation: int, folder: str) -> list[WrittenFile]:
        async with self._lock:
            await self._started(incarnation)
            return await asyncio.to_thread(save_files, self._checked_folder(folder))

    async def _started(self, incarnation: int) -> DataPlane:
        require_incarnation(incarnation, self._incarnation, DATA_PLANE_HOST)
        if self._broken:
            raise DataPlaneLost("a load has failed here", participant=DATA_PLANE_HOST)
        # Shielded: a caller that is cancelled does not cancel the start.
        return await asyncio.shield(asyncio.wrap_future(self._starting))

    def _start(self) -> None:
        try:
            plane = self._start_transfer_queue()
        except Exception as error:
            self._starting.set_exception(error)
        else:
            self._starting.set_result(plane)

    def _start_transfer_queue(self) -> DataPlane:
        # They import torch, for seconds: here, and not in each process that starts this actor.
        import transfer_queue as tq
        from omegaconf import OmegaConf

        from rl.data_plane.transfer_queue import DataPlane

        units = self._config.storage_units
        # Controller and units take a CPU each; with fewer declared, tq.init waits for ever.
        declared = ray.cluster_resources().get("CPU", 0)
        if declared < 1 + units:
            raise DataPlaneLost(
                f"Ray declares {declared:g} CPUs, TransferQueue needs {1 + units}: "
                "start Ray with a higher --num-cpus",
                participant=DATA_PLANE_HOST,
            )
        # tq.init would take it for its own; this actor starts once, so it is an older life's.
        if any(name.startswith("TransferQueue") for name in _actor_names()):
            raise StaleIncarnation(
                "TransferQueue of another incarnation is there", participant=DATA_PLANE_HOST
            )
        tq.init(
            OmegaConf.create(
                {
                    "controller": {"polling_mode": True},
                    "backend": {
                        "storage_backend": "SimpleStorage",
                        "SimpleStorage": {"num_data_storage_units": units},
                    },
                }
            )
        )
        return DataPlane()

    def _checked_folder(self, folder: str) -> Path:
        path = Path(folder)
        root = self._config.job_folder.resolve()
        if not path.is_absolute() or path.resolve().parent != root:
            raise FolderOutsideRoot(
                f"{path.name} does not lie in the job's folder", participant=DATA_PLANE_HOST
            )
        return path.resolve()


def data_plane_host(config: JobConfig, incarnation: int) -> Any:
    """Start the detached actor (named, never restarted: a restarted one would be empty)."""
    return (
        ray.remote(DataPlaneHost)
        .options(
            name=DATA_PLANE_HOST, lifetime="detached", num_cpus=0, max_restarts=0, max_concurrency=8
        )
        .remote(config, incarnation)
    )


def _actor_names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


async def _rows(plane: DataPlane) -> int:
    return sum([len(await plane.keys(partition)) for partition in (STAGING, TRAINING)])
