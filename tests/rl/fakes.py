"""Fakes of the Single Controller's collaborators; each can be made slow or fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gym.protocol import (
    Continuation,
    Counts,
    Kind,
    LedgerRow,
    Mode,
    Phase,
    Role,
    Status,
    StorageReference,
    TurnpointError,
    WrittenFile,
    canonical_json,
    capture_key,
    digest_of,
    model_call_id,
    staging_key,
)
from rl.config import JobConfig, SaveSettings, Workload
from rl.controller.collaborators import Collaborators
from rl.controller.controller import Controller
from rl.controller.job_state import JobState
from rl.data_plane.rows import StagingRow, TrainingRow
from rl.messages import Inventory, JoinedServer, RunRequest, RunResult, ServerReport

AGENT, MODEL, COUNTER = "simple_agent", "policy_model", "counter"
SHA = "0" * 64


class FakeDataPlane:
    """Rows in dictionaries; `gate` holds puts back, `fail` is raised by them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {"rollout_staging": {}, "rollout_data": {}}
        self.tags: dict[str, dict[str, Any]] = {}
        self.puts: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail: Exception | None = None
        self.claims_reset = 0

    def stage(self, key: str) -> StagingRow:
        row = StagingRow([1, 2], [3], [-0.5], b"{}", SHA, "v0")
        self.rows["rollout_staging"][key] = row
        return row

    async def get_staging(self, keys: Iterable[str]) -> dict[str, StagingRow]:
        staged = self.rows["rollout_staging"]
        return {key: staged[key] for key in keys if key in staged}

    async def put_training(self, rollout_id: str, row: TrainingRow, tag: dict[str, Any]) -> None:
        self.puts.append(rollout_id)
        await self.gate.wait()
        if self.fail:
            raise self.fail
        self.rows["rollout_data"][rollout_id] = row
        self.tags[rollout_id] = tag

    async def keys(self, partition: str) -> set[str]:
        return set(self.rows[partition])

    async def clear(self, partition: str, keys: Iterable[str]) -> None:
        for key in list(keys):
            self.rows[partition].pop(key, None)

    async def reset_claims(self, partition: str) -> None:
        self.claims_reset += 1


class FakeHost:
    """TransferQueue's save: writes one file; `gate` makes it hang, `fail` is raised."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.saves: list[str] = []
        self.fail: Exception | None = None
        self.began = asyncio.Event()

    async def save(self, folder: str) -> list[WrittenFile]:
        self.saves.append(folder)
        self.began.set()
        await self.gate.wait()
        if self.fail:
            raise self.fail
        return [WrittenFile(path="data_plane/x.pkl", bytes=1, sha256=SHA)]


class FakeGym:
    """NemoGym with one agent. A run is answered when the test calls `finish`."""

    def __init__(self, plane: FakeDataPlane, incarnation: int = 1) -> None:
        self.plane = plane
        self.incarnation = incarnation
        self.sent: list[tuple[str, int]] = []
        self.runs: dict[tuple[str, int], asyncio.Future[RunResult]] = {}
        self.acknowledged: list[tuple[str, int, str]] = []
        self.let_gone: list[tuple[str, str]] = []
        self.forgotten: list[tuple[str, str]] = []
        self.forget_errors: list[TurnpointError] = []
        self.acknowledge_gate = asyncio.Event()
        self.acknowledge_gate.set()
        self.acknowledge_errors: list[TurnpointError] = []
        self.answer: Inventory = Inventory(
            continuations={AGENT: []}, sessions={}, storage={}, line_counts={AGENT: 0}
        )
        self.held_error: TurnpointError | None = None
        self.discarded: list[str] = []
        self.phases = {AGENT: Phase.OPEN, MODEL: Phase.OPEN, COUNTER: Phase.OPEN}
        self.status_error: TurnpointError | None = None
        self.status_gate = asyncio.Event()
        self.status_gate.set()

    async def run(self, request: RunRequest) -> RunResult:
        key = (request.rollout_id, request.attempt_index)
        self.sent.append(key)
        self.runs[key] = asyncio.get_running_loop().create_future()
        return await self.runs[key]

    def result(self, rollout_id: str, attempt: int, calls: int = 2) -> RunResult:
        key = capture_key(rollout_id, attempt)
        records = []
        for call in range(calls):
            name = staging_key(self.incarnation, key, model_call_id(call))
            row = self.plane.stage(name)
            records.append(
                LedgerRow(
                    rollout_id=rollout_id,
                    attempt_index=attempt,
                    capture_key=key,
                    incarnation=self.incarnation,
                    model_call_id=model_call_id(call),
                    parent_model_call_id=model_call_id(call - 1) if call else None,
                    request_sha256=SHA,
                    coordinates=row.coordinates(name),
                )
            )
        body = {"reward": 1.0, "of": rollout_id}
        return RunResult(
            rollout_id=rollout_id,
            attempt_index=attempt,
            agent=AGENT,
            reward=1.0,
            result_digest=digest_of(body),
            result=canonical_json(body),
            records=records,
            resource_revisions={COUNTER: 3, "other": None},
        )

    def finish(self, rollout_id: str, attempt: int = 0) -> RunResult:
        result = self.result(rollout_id, attempt)
        self.runs[rollout_id, attempt].set_result(result)
        return result

    async def acknowledge(self, rollout_id: str, attempt: int, digest: str, agent: str) -> None:
        await self.acknowledge_gate.wait()
        if self.acknowledge_errors:
            raise self.acknowledge_errors.pop(0)
        self.acknowledged.append((rollout_id, attempt, digest))

    async def let_go(self, rollout_id: str, agent: str) -> None:
        self.let_gone.append((rollout_id, agent))

    async def forget(self, rollout_id: str, agent: str) -> None:
        if self.forget_errors:
            raise self.forget_errors.pop(0)
        self.forgotten.append((rollout_id, agent))

    async def status(self) -> list[Status]:
        await self.status_gate.wait()
        if self.status_error:
            raise self.status_error
        return [
            Status(
                server=name,
                instance_id="i",
                incarnation=1,
                phase=phase,
                checkpoint_id=None,
                lease_left_s=None,
                counts=Counts(),
                blockers=[],
                blocker_count=0,
            )
            for name, phase in self.phases.items()
        ]

    async def inventory(self, checkpoint_id: str) -> Inventory:
        return self.answer

    async def confirm_held(self, checkpoint_id: str) -> list[ServerReport]:
        if self.held_error:
            raise self.held_error
        return [ServerReport(server=AGENT, kind=Kind.AGENT, ms=1)]

    async def restored_inventory(self, restore_id: str) -> Inventory:
        return self.answer

    async def discard(self, restore_id: str, rollout_ids: list[str]) -> None:
        self.discarded += rollout_ids


class FakeFolder:
    """Names only, below a real folder."""

    def __init__(self, job_folder: Path) -> None:
        self.job_folder = job_folder
        self.number = 0
        self.discarded: list[str] = []
        self.free = 1 << 40
        self.left_over = 0
        """Bytes in what a failed save has left."""
        self.newest = 0

    def reserve(self, checkpoint_id: str, incarnation: int) -> tuple[str, str]:
        self.number += 1
        tmp = f"tmp_snapshot_{self.number:06d}-{checkpoint_id[:8]}"
        (self.job_folder / tmp / "rl").mkdir(parents=True)
        return tmp, f"snapshot_{self.number:06d}"

    def discard(self, checkpoint_id: str) -> list[str]:
        self.discarded.append(checkpoint_id)
        return []

    def make_room(self, incarnation: int) -> None:
        self.free += self.left_over
        self.left_over = 0

    def newest_bytes(self) -> int:
        return self.newest

    def free_bytes(self) -> int:
        return self.free


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def servers(counter: Mode = Mode.EXPORT_RESTORE) -> list[JoinedServer]:
    kinds = {MODEL: Kind.MODEL, AGENT: Kind.AGENT, COUNTER: Kind.RESOURCE}
    return [
        JoinedServer(
            name=name,
            kind=kind,
            mode=counter if name == COUNTER else Mode.EXPORT_RESTORE,
            role=Role.POLICY if kind is Kind.MODEL else None,
            url="http://127.0.0.1:1",
            instance_id="i",
        )
        for name, kind in kinds.items()
    ]


def config(root: Path, **changes: Any) -> JobConfig:
    return JobConfig(
        **{
            "job_id": "job",
            "snapshot_root": root,
            "control_token_file": root / "token",
            "servers": [],
            "policy_url": "http://127.0.0.1:1/v1",
            "policy_model": "tiny",
            "generation_port": 25001,
            "save": SaveSettings(lease_s=30),
            **changes,
        }
    )


def dataset(folder: Path, rows: int = 2) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"responses_create_params": {"input": f"prompt {n}"}, "n": n}) + "\n"
            for n in range(rows)
        )
    )
    return path


class World:
    """A controller among fakes."""

    def __init__(self, root: Path, *, rows: int = 2, incarnation: int = 1, **changes: Any) -> None:
        self.config = config(root, **changes)
        self.config.job_folder.mkdir(parents=True, exist_ok=True)
        self.workload = Workload(dataset=dataset(root, rows), generations=2, max_inflight=64)
        self.plane = FakeDataPlane()
        self.host = FakeHost()
        self.gym = FakeGym(self.plane, incarnation)
        self.folder = FakeFolder(self.config.job_folder)
        self.clock = Clock()
        self.lease_clock = Clock()
        self.controller = Controller(
            JobState(self.config, incarnation, servers()),
            Collaborators(
                data_plane=self.plane,
                host=self.host,
                gym=self.gym,
                folder=self.folder,
                clock=self.clock,
                lease_clock=self.lease_clock,
            ),
        )

    async def start(self) -> None:
        """Start fresh, and return when every rollout is sent."""
        await self.controller.start_fresh(self.workload)
        self.controller.start_pumps()
        total = self.controller.job.loader.total
        await until(lambda: len(self.gym.sent) == total)

    def hold(self, *rollout_ids: str, attempt: int = 0, calls: int = 1) -> None:
        """Have the agent hold these rollouts after `calls` model calls, as its inventory says."""
        lines, storage = [], []
        for rollout_id in rollout_ids:
            key = capture_key(rollout_id, attempt)
            for call in range(calls):
                name = staging_key(self.gym.incarnation, key, model_call_id(call))
                self.plane.stage(name)
                storage.append(
                    StorageReference(
                        rollout_id=rollout_id, model_call_id=model_call_id(call), key=name
                    )
                )
            lines.append(line(rollout_id, attempt, calls=calls))
        self.gym.answer = Inventory(
            continuations={AGENT: lines},
            sessions={COUNTER: []},
            storage={MODEL: storage},
            line_counts={AGENT: len(lines)},
        )


def line(
    rollout_id: str,
    attempt: int = 0,
    calls: int = 1,
    revisions: dict[str, int | None] | None = None,
) -> Continuation:
    return Continuation(
        rollout_id=rollout_id,
        attempt_index=attempt,
        capture_key=capture_key(rollout_id, attempt),
        last_committed_model_call_id=model_call_id(calls - 1) if calls else None,
        resource_state_revisions=revisions or {},
    )


async def until(reached: Any, limit_s: float = 5.0) -> None:
    """Let the loop run until `reached()`."""
    async with asyncio.timeout(limit_s):
        while not reached():  # noqa: ASYNC110  # whatever state it looks at
            await asyncio.sleep(0.001)
