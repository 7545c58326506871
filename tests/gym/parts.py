"""A part whose readiness, export and files the tests decide, and builders of requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gym.checkpoint.part_files import PartWriter
from gym.checkpoint.participant import Participant
from gym.checkpoint.phases import Phases
from gym.protocol import (
    Blocker,
    CommitRequest,
    Counts,
    DiscardRequest,
    ForgetRequest,
    Holdings,
    JoinRequest,
    Kind,
    Mode,
    Phase,
    PrepareRequest,
    RenewRequest,
    ResetRequest,
    RestoreRequest,
    ResumeRequest,
    Role,
    StatusRequest,
    WrittenFile,
)
from gym.server.settings import ServerSettings

JOB = "job"


class FakePart:
    """Keeps a dictionary; what it does is switched by its public fields."""

    kind = Kind.RESOURCE
    mode = Mode.EXPORT_RESTORE

    def __init__(self, role: Role | None = None) -> None:
        self.role = role
        self.busy: list[Blocker] = []
        self.state: list[str] = []
        self.events: list[str] = []
        self.write_gate = threading.Event()
        self.write_gate.set()
        self.read_gate = threading.Event()
        self.read_gate.set()
        self.reading = threading.Event()
        self.install_fails = False
        self.records = 1

    def counts(self) -> Counts:
        return Counts(sessions=len(self.state))

    def blockers(self) -> list[Blocker]:
        return list(self.busy)

    def export(self, request: CommitRequest) -> _FakeExport:
        self.events.append("export")
        return _FakeExport(self)

    def read(self, folder: Path, files: list[WrittenFile]) -> Any:
        self.reading.set()
        assert self.read_gate.wait(10)
        return [(folder / file.path).read_text() for file in files]

    def install(self, loaded: Any) -> Holdings:
        self.state = list(loaded)
        if self.install_fails:
            raise RuntimeError("half way")
        self.events.append("install")
        return Holdings(counts=self.counts())

    def drop(self) -> None:
        self.state = []
        self.events.append("drop")

    def discard(self, rollout_ids: Collection[str]) -> None:
        self.events.append(f"discard {sorted(rollout_ids)}")

    def forget(self, rollout_ids: Collection[str]) -> None:
        self.events.append(f"forget {sorted(rollout_ids)}")


class _FakeExport:
    def __init__(self, part: FakePart) -> None:
        self._holdings = Holdings(counts=part.counts())
        self._part = part

    def write(self, writer: PartWriter) -> Holdings:
        assert self._part.write_gate.wait(10)
        writer.jsonl("part.jsonl", ({"n": n} for n in range(self._part.records)))
        return self._holdings


class Caller:
    """Builds the requests of one caller of one participant."""

    def __init__(self, participant: Participant, incarnation: int = 1) -> None:
        self.participant = participant
        self.incarnation = incarnation

    @property
    def who(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "instance_id": self.participant.phases.instance_id,
        }

    def join(self, incarnation: int | None = None) -> JoinRequest:
        return JoinRequest(job_id=JOB, incarnation=incarnation or self.incarnation)

    def status(self) -> StatusRequest:
        return StatusRequest(**self.who)

    def prepare(self, ckpt: str = "ck", budget_s: float = 5, lease_s: float = 30) -> PrepareRequest:
        return PrepareRequest(**self.who, checkpoint_id=ckpt, budget_s=budget_s, lease_s=lease_s)

    def renew(self, ckpt: str = "ck", lease_s: float = 30) -> RenewRequest:
        return RenewRequest(**self.who, checkpoint_id=ckpt, lease_s=lease_s)

    def commit(self, folder: Path, ckpt: str = "ck", budget_s: float = 5) -> CommitRequest:
        return CommitRequest(**self.who, checkpoint_id=ckpt, budget_s=budget_s, folder=str(folder))

    def resume(self, ckpt: str = "ck") -> ResumeRequest:
        return ResumeRequest(**self.who, checkpoint_id=ckpt)

    def restore(
        self, folder: Path, restore: str = "rs", files: list[WrittenFile] | None = None
    ) -> RestoreRequest:
        return RestoreRequest(
            **self.who,
            restore_id=restore,
            source_checkpoint_id="ck",
            folder=str(folder),
            files=files or [],
        )

    def reset(self, restore: str = "rs") -> ResetRequest:
        return ResetRequest(**self.who, restore_id=restore)

    def discard(
        self, restore: str = "rs", rollouts: tuple[str, ...] = ("p0_g0",)
    ) -> DiscardRequest:
        return DiscardRequest(**self.who, restore_id=restore, rollout_ids=list(rollouts))

    def forget(self, *rollouts: str) -> ForgetRequest:
        return ForgetRequest(**self.who, rollout_ids=list(rollouts))


def settings(root: Path, *, expect_restore: bool = False, name: str = "fake") -> ServerSettings:
    return ServerSettings(
        name=name,
        port=21_999,
        snapshot_root=root,
        control_token=SecretStr("token"),
        expect_restore=expect_restore,
    )


def participant_of(part: FakePart, root: Path, *, expect_restore: bool = False) -> Participant:
    phases = Phases("fake", expect_restore=expect_restore, never_closes=part.role is Role.AUXILIARY)
    return Participant(phases, part, root)


def checkpoint_folder(root: Path, name: str = "tmp_snapshot_000001-abc") -> Path:
    folder = root / "job" / name
    (folder / "gym").mkdir(parents=True, exist_ok=True)
    return folder


def busy(where: str = "tool") -> Blocker:
    return Blocker(rollout_id="p0_g0", attempt_index=0, where=where, age_s=1)


async def participant_in(
    phase: Phase, root: Path, part: FakePart | None = None
) -> tuple[Participant, FakePart, Caller]:
    """A joined participant in `phase`, owned by `ck` (a save) or `rs` (a restore).

    In `preparing` the part is busy; in `restoring` its reader waits for `read_gate`.
    """
    part = part or FakePart()
    restoring = phase in (Phase.AWAITING_RESTORE, Phase.RESTORING, Phase.RESTORED)
    participant = participant_of(part, root, expect_restore=restoring)
    caller = Caller(participant)
    folder = checkpoint_folder(root)
    if phase is not Phase.CLOSED:
        await participant.join(caller.join())
    if phase is Phase.PREPARING:
        part.busy = [busy()]
        assert not (await participant.save.prepare(caller.prepare(budget_s=0.001))).ready
    if phase in (Phase.PREPARED, Phase.COMMITTED):
        assert (await participant.save.prepare(caller.prepare())).ready
    if phase is Phase.COMMITTED:
        await participant.save.commit(caller.commit(folder))
    if phase is Phase.RESTORING:
        part.read_gate.clear()
        task = asyncio.ensure_future(participant.restore.load(caller.restore(folder)))
        assert await asyncio.to_thread(part.reading.wait, 10)
        task.add_done_callback(lambda t: t.cancelled() or t.exception())
    if phase is Phase.RESTORED:
        await participant.restore.load(caller.restore(folder))
    assert participant.phases.phase is phase
    return participant, part, caller
