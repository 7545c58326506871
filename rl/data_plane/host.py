"""The Ray actor that owns TransferQueue: starts it, saves it, loads it.

Guarantees: TransferQueue lives exactly as long as this actor (detached; a driver that exits
takes nothing along). `save` returns only when every file and folder it wrote is synced, with the
digests of what is on disk. `load` compares sizes and digests of all files before anything is
unpickled; it runs once per instance, into an empty TransferQueue. The event loop is never
blocked: TransferQueue and the disk are used from a thread.

Does not keep writers out during a save: the barrier does (section 7). A load that failed half way
leaves TransferQueue in an unknown state: the instance then refuses everything and is to be killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from gym.durable import digest_of_file, sync_file, sync_folder
from gym.protocol import (
    DigestMismatch,
    FolderOutsideRoot,
    InvalidPhase,
    NoSpace,
    StaleIncarnation,
    WrittenFile,
)
from rl.data_plane.names import STAGING, TRAINING
from rl.errors import DataPlaneLost, Unpublished
from rl.messages import DATA_PLANE_HOST, JobConfig

if TYPE_CHECKING:
    from rl.data_plane.transfer_queue import DataPlane

DATA_PLANE_FOLDER = "data_plane"


class DataPlaneHost:
    """Owner of TransferQueue, for one incarnation. Make the actor with `data_plane_host`.

    Args:
        config: The job's configuration.
        incarnation: The one it belongs to; calls of another are refused.
    """

    def __init__(self, config: JobConfig, incarnation: int) -> None:
        """Start TransferQueue at once; an error reaches whoever calls next."""
        self._config = config
        self._incarnation = incarnation
        self._lock = asyncio.Lock()
        self._starting: Future[DataPlane] = Future()
        threading.Thread(target=self._start, name="transfer-queue-start", daemon=True).start()
        self._loaded: tuple[tuple[str, Sequence[WrittenFile]], int] | None = None
        self._broken = False

    async def job_id(self) -> str:
        """Whose data this is; answered at once, to everybody."""
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
        if incarnation != self._incarnation:
            raise StaleIncarnation(
                f"this is incarnation {self._incarnation}", participant=DATA_PLANE_HOST
            )
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


def save_files(base: Path) -> list[WrittenFile]:
    """Save TransferQueue below `base`, sync and digest it. Blocks; the folder must exist.

    Raises:
        Unpublished: `base` is gone, or another folder than before.
        NoSpace: The disk is full.
        DataPlaneLost: TransferQueue failed.
    """
    import transfer_queue as tq

    identity = _identity(base)
    if identity is None:
        raise Unpublished("the checkpoint folder is gone", details={"folder": base.name})
    target = base / DATA_PLANE_FOLDER
    try:
        tq.save_checkpoint(target)
        if _identity(base) == identity:
            # TransferQueue writes and does not sync.
            files = [_synced(base, path) for path in _files(target)]
            for path in (target, *(item for item in target.rglob("*") if item.is_dir()), base):
                sync_folder(path)
            return files
    except Exception as error:
        if _identity(base) == identity:
            if _is_full(error):
                raise NoSpace(
                    f"{DATA_PLANE_FOLDER}: {os.strerror(errno.ENOSPC)}; free space below the "
                    "snapshot root, then save again",
                    participant=DATA_PLANE_HOST,
                    details={"file": DATA_PLANE_FOLDER},
                ) from error
            raise DataPlaneLost(
                f"TransferQueue did not save ({type(error).__name__})", participant=DATA_PLANE_HOST
            ) from error
    # TransferQueue creates missing parents: what it made under the old name is ours to remove.
    _remove_recreated(base)
    raise Unpublished(
        "the checkpoint folder was renamed during the save", details={"folder": base.name}
    )


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error: TransferQueue's actors hand on its text alone."""
    while error is not None:
        if os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def verify_files(base: Path, files: Sequence[WrittenFile]) -> None:
    """Compare the data plane on disk with its records: no file missing, damaged or too much.

    Raises:
        DigestMismatch: The first file that differs, named.
    """
    expected = {file.path: file for file in files}
    found = {path.relative_to(base).as_posix(): path for path in _files(base / DATA_PLANE_FOLDER)}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise _damaged(name, "missing")
        if name not in expected:
            raise _damaged(name, "not in the manifest")
        if not stat.S_ISREG(found[name].lstat().st_mode):
            raise _damaged(name, "no regular file")
        if digest_of_file(found[name]) != (expected[name].bytes, expected[name].sha256):
            raise _damaged(name, "not the file that was written")
    if not expected:
        raise _damaged(f"{DATA_PLANE_FOLDER}/controller_state.pkl", "not in the manifest")


def _actor_names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def _damaged(name: str, why: str) -> DigestMismatch:
    return DigestMismatch(f"{name}: {why}", participant=DATA_PLANE_HOST, details={"file": name})


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _synced(base: Path, path: Path) -> WrittenFile:
    sync_file(path)
    size, sha256 = digest_of_file(path)
    return WrittenFile(path=path.relative_to(base).as_posix(), bytes=size, sha256=sha256)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove_recreated(base: Path) -> None:
    if base.exists():
        for name in (DATA_PLANE_FOLDER, f"{DATA_PLANE_FOLDER}.tmp"):
            shutil.rmtree(base / name, ignore_errors=True)
        base.rmdir()


async def _rows(plane: DataPlane) -> int:
    return sum([len(await plane.keys(partition)) for partition in (STAGING, TRAINING)])
