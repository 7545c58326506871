"""The controller's side of a save: once per id, held until complete, and never for longer."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym.protocol import (
    CheckpointConflict,
    DeadlineExceeded,
    InvalidPhase,
    InvalidRequest,
    NotReady,
    Phase,
    ServerUnreachable,
    StaleCheckpoint,
)
from rl.errors import (
    ControllerLost,
    DataPlaneBusy,
    DataPlaneLost,
    InventoryMismatch,
    NotHeld,
)
from rl.messages import BeginAnswer, ServerReport
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger, RunState
from tests.rl.fakes import World, until

A, B = "aaaaaaaa-1", "bbbbbbbb-2"


async def _running(tmp_path: Path, **changes: object) -> World:
    """Four rollouts under way, p0_g0 held by the agent after one call."""
    world = World(tmp_path, **changes)
    await world.start()
    world.hold("p0_g0")
    return world


async def _closed(world: World, checkpoint_id: str = A) -> BeginAnswer:
    begun = await world.controller.begin_checkpoint(checkpoint_id, None)
    assert begun.agreed, begun
    await world.controller.close_admission(checkpoint_id, 1)
    return begun


async def _published(world: World, checkpoint_id: str = A) -> None:
    begun = await _closed(world, checkpoint_id)
    await world.controller.cut_rl_state(checkpoint_id, begun.folder, 5)
    world.controller.resume_checkpoint(checkpoint_id, begun.snapshot)


# --- the straight path ------------------------------------------------------------------------


async def test_a_save_from_begin_to_resume(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await world.controller.begin_checkpoint(A, None)
    assert begun.folder == "tmp_snapshot_000001-aaaaaaaa" and begun.snapshot == "snapshot_000001"
    assert world.controller.job.admission.is_open  # nothing stands still yet
    assert await world.controller.close_admission(A, 1) == 0
    assert not world.controller.status().admission_open
    world.clock.now += 2
    answer = await world.controller.cut_rl_state(A, begun.folder, 5)
    assert [file.path for file in answer.files] == [
        "data_plane/x.pkl",
        "rl/loader.json",
        "rl/replay_index.parquet",
        "rl/recovery_ledger.parquet",
    ]
    assert (answer.unfinished, answer.finished) == (4, 0)
    assert answer.topology.semantic["generations"] == 2
    assert world.controller.status().checkpoint_id == A
    world.clock.now += 1
    assert world.controller.resume_checkpoint(A, begun.snapshot) == 3
    assert world.controller.resume_checkpoint(A, begun.snapshot) == 3  # repeatable
    status = world.controller.status()
    assert status.admission_open and status.checkpoint_id is None
    assert status.last_snapshot == "snapshot_000001"
    await asyncio.sleep(0.02)
    assert world.folder.discarded == []
    data = (world.config.job_folder / begun.folder / LEDGER_FILE).read_bytes()
    saved = RecoveryLedger.decode(data)
    assert saved["p0_g0"].run.state is RunState.STARTED
    assert saved["p0_g0"].staging_keys == ["1/p0_g0/call-0"]
    assert saved["p0_g1"].run.state is RunState.WAITING


async def test_each_operation_has_its_effect_once(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    first, second = await asyncio.gather(
        world.controller.begin_checkpoint(A, None), world.controller.begin_checkpoint(A, None)
    )
    assert first == second == await world.controller.begin_checkpoint(A, None)
    assert world.folder.number == 1
    await world.controller.close_admission(A, 1)
    world.clock.now += 5
    await world.controller.close_admission(A, 1)
    world.host.gate.clear()
    cuts = [
        asyncio.create_task(world.controller.cut_rl_state(A, first.folder, 5)) for _ in range(2)
    ]
    await world.host.began.wait()
    await asyncio.sleep(0.01)
    world.host.gate.set()
    answers = await asyncio.gather(*cuts)
    assert answers[0] == answers[1] == await world.controller.cut_rl_state(A, first.folder, 5)
    assert len(world.host.saves) == 1
    assert world.controller.resume_checkpoint(A, None) == 5  # from the first close


async def test_a_cancelled_caller_does_not_end_the_cut(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.gate.clear()
    caller = asyncio.create_task(world.controller.cut_rl_state(A, begun.folder, 5))
    await world.host.began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    world.host.gate.set()
    assert (await world.controller.cut_rl_state(A, begun.folder, 5)).unfinished == 4
    assert len(world.host.saves) == 1


# --- begin ------------------------------------------------------------------------------------


async def _refusal(world: World, checkpoint_id: str = B, name: str | None = None) -> str | None:
    answer = await world.controller.begin_checkpoint(checkpoint_id, name)
    assert answer.agreed == (answer.refusal is None)
    return answer.refusal


async def test_a_controller_that_was_not_started_refuses_everything(tmp_path: Path) -> None:
    controller = World(tmp_path).controller
    with pytest.raises(ControllerLost):
        await controller.begin_checkpoint(A, None)
    with pytest.raises(ControllerLost):
        await controller.close_admission(A, 1)
    with pytest.raises(ControllerLost):
        await controller.cut_rl_state(A, "tmp", 1)
    for refused in (
        lambda: controller.renew(A, 1),
        lambda: controller.resume_checkpoint(A, None),
        controller.start_pumps,
    ):
        with pytest.raises(ControllerLost):
            refused()
    assert controller.status().state == "starting"


async def test_begin_refuses_before_the_pumps_and_after_the_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.controller.start_fresh(world.workload)
    assert await _refusal(world) == "restore_not_finished"
    world.controller.start_pumps()
    await until(lambda: len(world.gym.sent) == 4)
    for name, _ in list(world.gym.sent):
        world.gym.finish(name)
    await until(lambda: world.controller.status().state == "finished")
    assert await _refusal(world) == "job_finished"


async def test_begin_refuses_a_second_save_and_its_id_is_not_spent(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    await world.controller.begin_checkpoint(A, None)
    answer = await world.controller.begin_checkpoint(B, None)
    assert answer.refusal == "checkpoint_running" and answer.details == {"checkpoint_id": A}
    assert answer.reason is not None and "wait for it" in answer.reason and A not in answer.reason
    world.controller.resume_checkpoint(A, None)
    assert await _refusal(world, B) is None


async def test_unchanged_since_the_last_snapshot(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    await _published(world)
    assert await _refusal(world, "c1") == "unchanged"
    assert await _refusal(world, "c2", "before-lr-change") is None  # named: never skipped
    world.controller.resume_checkpoint("c2", None)
    world.plane.stage("1/p0_g1/call-0")  # a staged model call is a change
    assert await _refusal(world, "c3") is None
    world.controller.resume_checkpoint("c3", None)
    assert await _refusal(world, "c4") is None  # c3 published nothing


async def test_an_older_snapshot_that_is_told_of_late_is_not_the_newest(tmp_path: Path) -> None:
    """A worker that stood still over its resume sends it once more, after the next save.

    Break: rl/controller/saves.py: take whatever was told of last.
    """
    world = await _running(tmp_path)
    await _published(world)
    world.plane.stage("1/p0_g1/call-0")
    await _published(world, B)
    world.controller.resume_checkpoint(A, "snapshot_000001")
    assert world.controller.status().last_snapshot == "snapshot_000002"
    assert await _refusal(world, "c1") == "unchanged"


async def test_a_mutation_since_the_last_snapshot_is_a_change(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    await _published(world)
    async with world.controller.job.barrier.mutation():
        pass
    assert await _refusal(world) is None


async def test_begin_looks_at_servers_and_space_before_anything_stands_still(
    tmp_path: Path,
) -> None:
    world = await _running(tmp_path)
    world.gym.phases["counter"] = Phase.PREPARED
    answer = await world.controller.begin_checkpoint("c1", None)
    assert answer.refusal == "server_unfit" and "counter" in (answer.reason or "")
    world.gym.phases["counter"] = Phase.OPEN
    world.gym.status_error = ServerUnreachable("refused", participant="counter")
    answer = await world.controller.begin_checkpoint("c2", None)
    assert answer.refusal == "server_unfit" and "counter" in (answer.reason or "")
    world.gym.status_error = None
    world.folder.free = 1000
    assert await _refusal(world, "c3") == "no_space"
    world.folder.free = 1 << 40
    assert await _refusal(world, "c3") is None
    assert world.folder.number == 1
    assert world.controller.job.admission.is_open


async def test_a_failed_begin_leaves_nothing_held(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    reserve = world.folder.reserve

    def refuse(checkpoint_id: str, incarnation: int) -> tuple[str, str]:
        raise DataPlaneLost("no disk")

    world.folder.reserve = refuse  # type: ignore[method-assign]
    with pytest.raises(DataPlaneLost):
        await world.controller.begin_checkpoint(A, None)
    assert world.controller.status().checkpoint_id is None
    world.folder.reserve = reserve  # type: ignore[method-assign]
    assert await _refusal(world, A) is None


async def test_a_resume_during_begin_wins(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    world.gym.status_gate.clear()
    begin = asyncio.create_task(world.controller.begin_checkpoint(A, None))
    await asyncio.sleep(0.01)
    assert world.controller.resume_checkpoint(A, None) is None
    world.gym.status_gate.set()
    with pytest.raises(StaleCheckpoint):
        await begin
    assert world.folder.discarded[-1] == A
    assert world.controller.status().checkpoint_id is None


async def test_a_slow_begin_that_has_ended_touches_nothing_of_the_next_save(
    tmp_path: Path,
) -> None:
    """What it sweeps or makes room by would be the folder that the next save writes in.

    Break: rl/controller/save.py: let two begins look at the folder at the same time.
    """
    world = await _running(tmp_path)
    reached, slow, done = threading.Event(), threading.Event(), []

    def newest_bytes() -> int:
        if not reached.is_set():  # the first one alone is slow
            reached.set()
            slow.wait()
        return 0

    world.folder.newest_bytes = newest_bytes  # type: ignore[method-assign]
    for name in ("make_room", "reserve"):
        world.folder.__dict__[name] = _noted(getattr(world.folder, name), name, done)
    first = asyncio.create_task(world.controller.begin_checkpoint(A, "first"))
    assert await asyncio.to_thread(reached.wait, 10)
    world.controller.resume_checkpoint(A, None)
    second = asyncio.create_task(world.controller.begin_checkpoint(B, "second"))
    await asyncio.wait({second}, timeout=0.1)
    world.folder.free = 0
    world.folder.left_over = 1 << 40
    slow.set()
    with pytest.raises(StaleCheckpoint):
        await first
    assert (await second).agreed
    assert done[-1] == ("reserve", B)


def _noted(work: Callable[..., Any], name: str, done: list[tuple[str, object]]) -> Any:
    def noting(*given: Any) -> Any:
        done.append((name, given[0]))
        return work(*given)

    return noting


# --- close admission --------------------------------------------------------------------------


async def test_closing_waits_for_what_was_owed(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    world.gym.acknowledge_gate.clear()
    world.gym.finish("p0_g1")
    await until(lambda: world.controller.status().owed == 1)
    await world.controller.begin_checkpoint(A, None)
    with pytest.raises(DeadlineExceeded) as caught:
        await world.controller.close_admission(A, 0.05)
    assert caught.value.details["rollouts"] == ["p0_g1"]
    closing = asyncio.create_task(world.controller.close_admission(A, 5))
    await asyncio.sleep(0.01)
    assert not closing.done()
    world.gym.acknowledge_gate.set()
    assert await closing == 1


async def test_steps_in_another_order_or_of_another_save_are_refused(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    with pytest.raises(InvalidPhase):
        await world.controller.close_admission(A, 1)
    begun = await world.controller.begin_checkpoint(A, None)
    with pytest.raises(InvalidPhase):
        await world.controller.cut_rl_state(A, begun.folder, 1)
    with pytest.raises(CheckpointConflict):
        await world.controller.close_admission(B, 1)
    await world.controller.close_admission(A, 1)
    with pytest.raises(InvalidRequest):
        await world.controller.cut_rl_state(A, "tmp_snapshot_000009-aaaaaaaa", 1)
    assert not world.controller.renew(B, 5)
    assert world.controller.resume_checkpoint(B, None) is None
    assert not world.controller.job.admission.is_open  # A still holds it


# --- the cut ----------------------------------------------------------------------------------


async def test_a_cut_with_an_acknowledgement_owed_is_refused(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.gym.acknowledge_gate.clear()
    world.gym.finish("p0_g1")
    await until(lambda: world.controller.status().owed == 1)
    with pytest.raises(DeadlineExceeded):
        await world.controller.cut_rl_state(A, begun.folder, 0.05)
    assert world.host.saves == []

    async def paid_too_early(_: object = None) -> None: ...

    world.controller.job.ledger.wait_paid = paid_too_early  # type: ignore[method-assign]
    with pytest.raises(NotReady):
        await world.controller.cut_rl_state(A, begun.folder, 1)
    assert world.host.saves == []


async def test_nothing_changes_between_the_picture_and_the_end_of_the_save(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.cut_rl_state(A, begun.folder, 5))
    await world.host.began.wait()
    world.gym.finish("p0_g1")
    await asyncio.sleep(0.02)
    assert world.plane.puts == []

    async def held_late(_: str) -> list[ServerReport]:
        await until(lambda: world.plane.puts == ["p0_g1"])
        return []

    world.gym.confirm_held = held_late  # type: ignore[method-assign]
    world.host.gate.set()
    answer = await cut
    assert (answer.finished, answer.rows_put) == (0, 0)
    await until(lambda: world.plane.puts == ["p0_g1"])


async def test_a_disagreement_fails_the_cut_before_anything_is_saved(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    await world.plane.clear("rollout_staging", ["1/p0_g0/call-0"])
    with pytest.raises(InventoryMismatch):
        await world.controller.cut_rl_state(A, begun.folder, 5)
    assert world.host.saves == [] and not world.controller.job.barrier.cutting
    world.plane.stage("1/p0_g0/call-0")
    await world.controller.cut_rl_state(A, begun.folder, 5)  # a failed try may be repeated


async def test_a_server_that_no_longer_holds_fails_the_cut(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.gym.held_error = NotHeld("lease ended", participant="counter")
    with pytest.raises(NotHeld):
        await world.controller.cut_rl_state(A, begun.folder, 5)


async def test_a_failed_data_plane_save_fails_the_cut_alone(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.fail = DataPlaneLost("TransferQueue did not save")
    with pytest.raises(DataPlaneLost):
        await world.controller.cut_rl_state(A, begun.folder, 5)
    world.controller.resume_checkpoint(A, None)
    assert world.controller.status().state == "running"
    await until(lambda: world.folder.discarded == [A])
    world.host.fail = None
    assert await _refusal(world) is None


async def test_a_deadline_in_the_save_ends_the_cut_and_a_repeat_waits(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.gate.clear()
    with pytest.raises(DeadlineExceeded):
        await world.controller.cut_rl_state(A, begun.folder, 0.05)
    assert not world.controller.job.barrier.cutting
    with pytest.raises(DataPlaneBusy):
        await world.controller.cut_rl_state(A, begun.folder, 0.05)
    world.host.gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await world.controller.cut_rl_state(A, begun.folder, 5)


# --- the end of a save ------------------------------------------------------------------------


async def test_an_ended_id_can_do_nothing_any_more(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.controller.resume_checkpoint(A, None)
    for late in (
        world.controller.begin_checkpoint(A, None),
        world.controller.close_admission(A, 1),
        world.controller.cut_rl_state(A, begun.folder, 1),
    ):
        with pytest.raises(StaleCheckpoint):
            await late
    assert not world.controller.renew(A, 30)
    assert world.controller.job.admission.is_open
    # a resume that comes before everything else counts too
    assert world.controller.resume_checkpoint(B, None) is None
    with pytest.raises(StaleCheckpoint):
        await world.controller.begin_checkpoint(B, None)


async def test_a_resume_during_the_cut_condemns_it(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.cut_rl_state(A, begun.folder, 5))
    await world.host.began.wait()
    world.controller.resume_checkpoint(A, None)
    with pytest.raises(StaleCheckpoint):
        await cut
    assert world.controller.job.admission.is_open and not world.controller.job.barrier.cutting
    assert await _refusal(world) == "data_plane_busy"
    world.host.gate.set()
    await until(lambda: world.folder.discarded == [A])
    assert await _refusal(world) is None


async def test_the_lease_end_during_the_save_leaves_nothing_paused(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.cut_rl_state(A, begun.folder, 60))
    await world.host.began.wait()
    world.gym.finish("p0_g1")
    await asyncio.sleep(0.01)
    assert world.plane.puts == []
    world.lease_clock.now += 31
    assert not world.controller.renew(A, 30)  # looked at before the timer
    status = world.controller.status()
    assert status.admission_open and status.checkpoint_id is None
    with pytest.raises(StaleCheckpoint):
        await cut
    await until(lambda: world.plane.puts == ["p0_g1"])  # rollouts do not wait for the save
    assert await _refusal(world) == "data_plane_busy"
    assert world.folder.discarded == []  # not before TransferQueue's save has returned
    world.host.gate.set()
    await until(lambda: world.folder.discarded == [A])
    for _ in range(300):
        if await _refusal(world) is None:
            return
        await asyncio.sleep(0.01)
    pytest.fail("it is still busy 3 s after TransferQueue's save has returned")


async def test_the_lease_ends_by_its_timer(tmp_path: Path) -> None:
    world = World(tmp_path, save={"lease_s": 0.05})
    # the timer runs on the loop's clock, the lease on the test's
    ticking = world.controller.desk._lease
    await world.start()
    world.hold("p0_g0")
    ticking._clock = asyncio.get_running_loop().time
    await _closed(world)
    assert not world.controller.job.admission.is_open
    await until(lambda: world.controller.job.admission.is_open)
    await until(lambda: world.folder.discarded == [A])


async def test_a_lease_that_ends_after_the_save_condemns_the_cut(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    confirm = world.gym.confirm_held

    async def slowly(checkpoint_id: str) -> list:
        world.lease_clock.now += 31
        return await confirm(checkpoint_id)

    world.gym.confirm_held = slowly  # type: ignore[method-assign]
    with pytest.raises(StaleCheckpoint):
        await world.controller.cut_rl_state(A, begun.folder, 5)
    await until(lambda: world.folder.discarded == [A])


async def test_renewing_and_every_call_extend_the_lease(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await world.controller.begin_checkpoint(A, None)
    for step in (
        lambda: world.controller.close_admission(A, 1),
        lambda: world.controller.cut_rl_state(A, begun.folder, 5),
    ):
        world.lease_clock.now += 29
        await step()
        assert world.controller.status().lease_left_s == 30
    world.lease_clock.now += 29
    assert world.controller.renew(A, 30)
    assert world.controller.status().lease_left_s == 30


async def test_a_publish_that_the_lease_did_not_see_still_counts(tmp_path: Path) -> None:
    """The publish had won the rename before the lease ended."""
    world = await _running(tmp_path)
    begun = await _closed(world)
    await world.controller.cut_rl_state(A, begun.folder, 5)
    world.clock.now += 40
    world.lease_clock.now += 40
    assert world.controller.status().admission_open
    assert world.controller.resume_checkpoint(A, begun.snapshot) == 40
    assert world.controller.status().last_snapshot == begun.snapshot
    assert await _refusal(world) == "unchanged"


async def test_a_failed_job_ends_its_save_and_refuses_the_next(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.controller.job.fail(DataPlaneLost("gone"))
    with pytest.raises(ControllerLost, match="restore it"):
        await world.controller.cut_rl_state(A, begun.folder, 5)
    with pytest.raises(ControllerLost):
        await world.controller.begin_checkpoint(B, None)
    assert world.controller.resume_checkpoint(A, None) == 0
    await until(lambda: world.folder.discarded == [A])


async def test_a_job_that_fails_during_the_cut_condemns_it(tmp_path: Path) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.cut_rl_state(A, begun.folder, 5))
    await world.host.began.wait()
    world.controller.job.fail(DataPlaneLost("gone"))
    with pytest.raises(StaleCheckpoint):
        await cut
    world.host.gate.set()
    await until(lambda: world.folder.discarded == [A])


async def test_files_are_written_off_the_loop(tmp_path: Path, monkeypatch) -> None:
    world = await _running(tmp_path)
    begun = await _closed(world)
    writers = []

    def note(path: Path, data: bytes) -> None:
        writers.append(threading.current_thread())

    monkeypatch.setattr("rl.controller.cut.write_durably", note)
    await world.controller.cut_rl_state(A, begun.folder, 5)
    assert len(writers) == 3 and threading.main_thread() not in writers
