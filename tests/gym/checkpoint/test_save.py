"""Saves: coalescing, recorded answers, ended ids, leases, and the writer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gym.checkpoint.participant import Participant
from gym.ended_ids import IDS_KEPT
from gym.protocol import (
    DeadlineExceeded,
    FolderOutsideRoot,
    Identity,
    InvalidPhase,
    NotReady,
    Phase,
    RequestConflict,
    Role,
    StaleCheckpoint,
)
from tests.gym.parts import FakePart, busy, checkpoint_folder, participant_in


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def clocked(participant: Participant) -> FakeClock:
    """Give a participant's lease a clock that the test moves; its timer is far away."""
    clock = FakeClock()
    participant.phases.lease._clock = clock
    return clock


# --- prepare --------------------------------------------------------------------------------------


async def test_prepare_waits_for_the_call_in_flight_and_is_ready_when_it_ends(
    tmp_path: Path,
) -> None:
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
    with participant.phases.calls.count(identity, "tool"):
        preparing = asyncio.ensure_future(participant.save.prepare(caller.prepare()))
        await asyncio.sleep(0.02)
        assert participant.phases.phase is Phase.PREPARING
        assert not preparing.done()
        status = participant.status(caller.status())
        assert [(b.rollout_id, b.where) for b in status.blockers] == [("p0_g0", "tool")]
        assert status.counts.in_flight == 1
    answer = await asyncio.wait_for(preparing, 1)
    assert answer.ready
    assert answer.counts.in_flight == 0
    participant.shut_down()


async def test_prepare_answers_its_blockers_when_the_budget_is_used_up_and_stays_closed(
    tmp_path: Path,
) -> None:
    participant, part, caller = await participant_in(Phase.OPEN, tmp_path)
    part.busy = [busy() for _ in range(150)]
    answer = await participant.save.prepare(caller.prepare(budget_s=0.02))
    assert not answer.ready
    assert len(answer.blockers) == 100
    assert answer.blocker_count == 150
    assert not participant.phases.is_open
    part.busy = []
    assert (await participant.save.prepare(caller.prepare(budget_s=0.02))).ready
    participant.shut_down()


async def test_the_same_prepare_waits_for_the_one_that_runs(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.OPEN, tmp_path)
    part.busy = [busy()]
    first = asyncio.ensure_future(participant.save.prepare(caller.prepare()))
    second = asyncio.ensure_future(participant.save.prepare(caller.prepare()))
    await asyncio.sleep(0.01)
    first.cancel()  # a caller that leaves ends nothing
    part.busy = []
    participant.phases.changed()
    assert (await asyncio.wait_for(second, 1)).ready
    participant.shut_down()


async def test_resume_ends_a_running_prepare_and_its_id_for_good(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.OPEN, tmp_path)
    part.busy = [busy()]
    preparing = asyncio.ensure_future(participant.save.prepare(caller.prepare()))
    await asyncio.sleep(0.01)
    participant.save.resume(caller.resume())
    assert participant.phases.is_open
    with pytest.raises(StaleCheckpoint):
        await asyncio.wait_for(preparing, 1)
    part.busy = []
    with pytest.raises(StaleCheckpoint):
        await participant.save.prepare(caller.prepare())
    assert participant.phases.is_open


async def test_an_id_resumed_before_it_arrives_can_do_nothing_until_1024_newer_ones(
    tmp_path: Path,
) -> None:
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    participant.save.resume(caller.resume("late"))
    for number in range(IDS_KEPT - 1):
        participant.save.resume(caller.resume(f"other-{number}"))
    with pytest.raises(StaleCheckpoint):
        await participant.save.prepare(caller.prepare("late"))
    participant.save.resume(caller.resume("one-more"))
    assert (await participant.save.prepare(caller.prepare("late"))).ready
    participant.shut_down()


async def test_an_auxiliary_model_server_never_closes(tmp_path: Path) -> None:
    part = FakePart(role=Role.AUXILIARY)
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path, part)
    with participant.phases.calls.count(None, "model_call"):
        assert (await participant.save.prepare(caller.prepare())).ready
        assert participant.phases.is_open
        participant.phases.require_open()
        await asyncio.wait_for(participant.phases.wait_open(), 1)
        folder = checkpoint_folder(tmp_path)
        await participant.save.commit(caller.commit(folder))
        assert participant.phases.phase is Phase.COMMITTED
        assert participant.phases.is_open
    participant.shut_down()


# --- admission ------------------------------------------------------------------------------------


# --- leases ---------------------------------------------------------------------------------------


async def test_an_ended_lease_opens_by_timer_and_refuses_its_id(tmp_path: Path) -> None:
    """Invariant 3. Break: gym/lease.py: arm no timer; seen red."""
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    began = time.monotonic()
    await participant.save.prepare(caller.prepare(lease_s=0.15))
    reopened = asyncio.create_task(participant.phases.next_opening(10))
    await asyncio.wait_for(participant.phases.wait_open(), 2)
    assert 0.14 <= time.monotonic() - began < 1
    await asyncio.wait_for(reopened, 1)
    with pytest.raises(StaleCheckpoint):
        await participant.save.prepare(caller.prepare())
    with pytest.raises(StaleCheckpoint):
        await participant.save.commit(caller.commit(checkpoint_folder(tmp_path)))
    assert participant.save.resume(caller.resume()).phase is Phase.OPEN
    assert participant.phases.owner is None


async def test_renewals_keep_it_longer_than_one_lease(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    await participant.save.prepare(caller.prepare(lease_s=0.2))
    for _ in range(5):
        await asyncio.sleep(0.08)
        assert participant.save.renew(caller.renew(lease_s=0.2)).held
    assert participant.phases.phase is Phase.PREPARED
    await asyncio.sleep(0.35)
    assert participant.phases.phase is Phase.OPEN


@pytest.mark.parametrize("operation", ["renew", "status", "prepare", "commit", "resume", "admit"])
async def test_any_request_finds_the_ended_lease_before_the_timer_does(
    operation: str, tmp_path: Path
) -> None:
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    clock = clocked(participant)
    await participant.save.prepare(caller.prepare(lease_s=30))
    clock.now += 29.9
    assert participant.save.renew(caller.renew(lease_s=30)).held
    clock.now += 30.1
    if operation == "renew":
        assert not participant.save.renew(caller.renew()).held
    elif operation == "status":
        assert participant.status(caller.status()).checkpoint_id is None
    elif operation == "prepare":
        with pytest.raises(StaleCheckpoint):
            await participant.save.prepare(caller.prepare())
    elif operation == "commit":
        with pytest.raises(StaleCheckpoint):
            await participant.save.commit(caller.commit(checkpoint_folder(tmp_path)))
    elif operation == "resume":
        participant.save.resume(caller.resume())
    else:
        participant.phases.require_open()
    assert participant.phases.phase is Phase.OPEN


async def test_a_renew_of_another_id_extends_nothing(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    clock = clocked(participant)
    await participant.save.prepare(caller.prepare(lease_s=30))
    clock.now += 20
    assert not participant.save.renew(caller.renew("other", lease_s=300)).held
    clock.now += 11
    assert participant.phases.phase is Phase.OPEN


async def test_a_commit_extends_no_lease(tmp_path: Path) -> None:
    """Only a proof that RL still drives the save does: `prepare` and `renew` carry one."""
    participant, _, caller = await participant_in(Phase.OPEN, tmp_path)
    clock = clocked(participant)
    await participant.save.prepare(caller.prepare(lease_s=30))
    clock.now += 20
    await participant.save.commit(caller.commit(checkpoint_folder(tmp_path)))
    clock.now += 9
    assert participant.phases.phase is Phase.COMMITTED
    clock.now += 1.1
    assert participant.phases.phase is Phase.OPEN


async def test_a_lease_that_ends_while_prepare_waits_never_makes_it_ready(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.OPEN, tmp_path)
    clock = clocked(participant)
    part.busy = [busy()]
    preparing = asyncio.ensure_future(participant.save.prepare(caller.prepare(lease_s=30)))
    await asyncio.sleep(0.01)
    clock.now += 31
    part.busy = []
    participant.phases.changed()  # the part is ready only after the lease has ended
    with pytest.raises(StaleCheckpoint):
        await asyncio.wait_for(preparing, 1)
    assert participant.phases.is_open


# --- commit and its writer ------------------------------------------------------------------------


async def test_commit_writes_once_and_repeats_its_answer(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)
    part.write_gate.clear()
    first = asyncio.ensure_future(participant.save.commit(caller.commit(folder)))
    second = asyncio.ensure_future(participant.save.commit(caller.commit(folder)))
    await asyncio.sleep(0.05)
    assert participant.phases.phase is Phase.PREPARED
    part.write_gate.set()
    answers = [await first, await second, await participant.save.commit(caller.commit(folder))]
    assert part.events.count("export") == 1
    assert answers[0] == answers[1] == answers[2]
    (file,) = answers[0].files
    content = (folder / file.path).read_bytes()
    assert file.path == "gym/fake/part.jsonl"
    assert (file.bytes, file.records) == (len(content), 1)
    assert [p.name for p in (folder / "gym/fake").iterdir()] == ["part.jsonl"]
    other = checkpoint_folder(tmp_path, "tmp_snapshot_000002-abc")
    with pytest.raises(RequestConflict):
        await participant.save.commit(caller.commit(other))
    participant.shut_down()


async def test_resume_opens_at_once_stops_the_writer_and_the_next_prepare_waits_for_it(
    tmp_path: Path,
) -> None:
    participant, part, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)
    part.write_gate.clear()
    committing = asyncio.ensure_future(participant.save.commit(caller.commit(folder)))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    participant.save.resume(caller.resume())
    assert participant.phases.is_open
    with pytest.raises(StaleCheckpoint):
        await asyncio.wait_for(committing, 1)
    assert time.monotonic() - began < 0.5
    answer = await participant.save.prepare(caller.prepare("next", budget_s=0.05))
    assert [blocker.where for blocker in answer.blockers] == ["writer"]
    assert not answer.ready
    part.write_gate.set()
    assert (await participant.save.prepare(caller.prepare("next", budget_s=5))).ready
    assert not (folder / "gym/fake").exists() or not list((folder / "gym/fake").iterdir())
    participant.shut_down()


async def test_a_lease_that_ends_stops_the_writer_between_records(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.OPEN, tmp_path)
    folder = checkpoint_folder(tmp_path)
    part.records = 10_000_000
    await participant.save.prepare(caller.prepare(lease_s=0.3))
    with pytest.raises(StaleCheckpoint):
        await participant.save.commit(caller.commit(folder))
    assert participant.phases.is_open
    assert (await participant.save.prepare(caller.prepare("next"))).ready  # the writer has stopped
    assert list((folder / "gym/fake").iterdir()) == []
    participant.shut_down()


async def test_commit_past_its_budget_stays_prepared_and_can_be_repeated(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)
    part.write_gate.clear()
    with pytest.raises(DeadlineExceeded):
        await participant.save.commit(caller.commit(folder, budget_s=0.05))
    assert participant.phases.phase is Phase.PREPARED
    with pytest.raises(NotReady):  # the first writer is still there
        await participant.save.commit(caller.commit(folder, budget_s=0.05))
    part.write_gate.set()
    assert (await participant.save.commit(caller.commit(folder))).files
    participant.shut_down()


async def test_a_writer_that_fails_leaves_no_file_and_the_phase_prepared(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)
    (folder / "gym").rename(folder / "gone")
    with pytest.raises(FolderOutsideRoot):
        await participant.save.commit(caller.commit(folder))
    assert participant.phases.phase is Phase.PREPARED
    (folder / "gone").rename(folder / "gym")
    await participant.save.commit(caller.commit(folder))
    participant.shut_down()


async def test_commit_never_makes_a_checkpoint_folder_anew(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)
    folder.rename(folder.with_name("trash_snapshot_000001"))
    with pytest.raises(FolderOutsideRoot):
        await participant.save.commit(caller.commit(folder))
    assert not folder.exists()
    participant.shut_down()


async def test_a_folder_renamed_to_trash_while_writing_is_not_made_anew(tmp_path: Path) -> None:
    participant, part, caller = await participant_in(Phase.PREPARED, tmp_path)
    folder = checkpoint_folder(tmp_path)
    part.write_gate.clear()
    committing = asyncio.ensure_future(participant.save.commit(caller.commit(folder)))
    await asyncio.sleep(0.05)
    folder.rename(folder.with_name("trash_snapshot_000001"))
    part.write_gate.set()
    with pytest.raises(FolderOutsideRoot):
        await committing
    assert not folder.exists()
    participant.shut_down()


# --- joining and restoring ------------------------------------------------------------------------


async def test_a_resume_that_meets_a_reset_opens_nothing(tmp_path: Path) -> None:
    """Break: gym/checkpoint/save.py: let `resume` open under an operation that has ended."""
    participant, _, caller = await participant_in(Phase.RESTORED, tmp_path)

    async def resume() -> None:
        participant.save.resume(caller.resume("rs"))

    reset = asyncio.ensure_future(participant.restore.reset(caller.reset()))
    with pytest.raises(InvalidPhase):
        await asyncio.ensure_future(resume())
    assert (await reset).phase is Phase.AWAITING_RESTORE
