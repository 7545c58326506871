"""A job's folder with one unpublished checkpoint, and every durable step of what is done to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gym.protocol import WrittenFile
from rl.config import JobConfig
from rl.messages import Topology
from rl.snapshots import incarnations
from rl.snapshots.folder import Reserved, SnapshotFolder
from rl.snapshots.manifest import SnapshotManifest

CONTENT = {
    "gym/simple_agent/continuations.jsonl": b'{"rollout_id": "p7_g2"}\n',
    "gym/counter/sessions.jsonl": b"{}\n",
    "data_plane/unit_0/rows.pkl": b"\x80\x04]\x94." * 100,
    "rl/loader.json": b"{}",
}
FIRST, SECOND = "1f2e3d4c-0000-4000-8000-000000000001", "aaaabbbb-0000-4000-8000-000000000002"
DURABLE_STEPS = ("fsync", "rename", "link", "unlink", "mkdir")


def config_of(root: Path, *, key: bytes | None = None) -> JobConfig:
    key_file = None
    if key is not None:
        key_file = root / "snapshot.key"
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
    return JobConfig(
        job_id="job-1",
        snapshot_root=root / "snapshots",
        control_token_file=root / "token",
        snapshot_key_file=key_file,
        servers=[],
        policy_url="http://127.0.0.1:1/v1",
        policy_model="tiny",
        generation_port=24_000,
    )


def topology() -> Topology:
    return Topology(
        servers=[], policy_model="tiny", policy_sha256="", storage_units=1, semantic={"epochs": 1}
    )


def manifest_of(
    reserved: Reserved, checkpoint_id: str, *, incarnation: int = 1, name: str | None = None
) -> SnapshotManifest:
    return SnapshotManifest(
        job_id="job-1",
        snapshot=reserved.snapshot,
        checkpoint_id=checkpoint_id,
        name=name,
        incarnation=incarnation,
        created_at=datetime(2026, 11, 30, tzinfo=UTC),
        topology=topology(),
        files=[],
    )


def write_files(folder: Path, content: dict[str, bytes] = CONTENT) -> list[WrittenFile]:
    files = []
    for path, data in content.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        files.append(
            WrittenFile(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        )
    return files


def start_job(config: JobConfig, snapshot: str | None = None) -> int:
    """Claim the next incarnation and name its origin."""
    number = incarnations.newest(config.job_folder)
    claimed = incarnations.claim(config.job_folder, {"run_id": f"run-{number + 1}"})
    incarnations.record_origin(config.job_folder, claimed, snapshot)
    return claimed


def save(
    folder: SnapshotFolder, checkpoint_id: str, *, incarnation: int = 1, name: str | None = None
) -> str:
    """A whole save on the folder's side."""
    reserved = folder.reserve(checkpoint_id, incarnation)
    files = write_files(folder.path / reserved.tmp)
    manifest = manifest_of(reserved, checkpoint_id, incarnation=incarnation, name=name)
    folder.publish(reserved.tmp, reserved.snapshot, manifest, files)
    return reserved.snapshot


@contextmanager
def at_each_step(before: Callable[[int], None], after: Callable[[int], None]) -> Iterator[None]:
    """Call `before(n)` and `after(n)` around the n-th durable step (fsync, rename, ...)."""
    step = 0

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            nonlocal step
            mine, step = step, step + 1
            before(mine)
            try:
                return real(*args, **kwargs)
            finally:
                after(mine)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in DURABLE_STEPS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield


def crash_points(work: Callable[[], object]) -> Iterator[tuple[int, str]]:
    """Run `work` in a child that ends by `os._exit` before, then after, each durable step.

    Yields once the child of each point has died; ends when a child has nothing left to crash at.
    """
    step = 0
    while True:
        for moment in ("before", "after"):
            child = os.fork()
            if child == 0:
                _die_at(work, step, moment)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                return
            assert code == 9, f"the child failed by itself at {moment} step {step}"
            yield step, moment
        step += 1


def _die_at(work: Callable[[], object], step: int, moment: str) -> None:
    def die(number: int) -> None:
        if number == step:
            os._exit(9)

    def live(_number: int) -> None:
        return None

    try:
        with at_each_step(*((die, live) if moment == "before" else (live, die))):
            work()
    except BaseException:
        os._exit(1)
    os._exit(0)
