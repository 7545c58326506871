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
    StaleCheckpoint,
)
from rl.errors import (
    ControllerLost,
    DataPlaneBusy,
    DataPlaneLost,
)
from rl.records.recovery_ledger import LEDGER_FILE, RecoveryLedger
from rl.records.rollout_record import RunPhase
from tests.rl.controller.saving import A, B, closed, mutate, refusal, running
from tests.rl.fakes import World, until


async def test_a_save_from_begin_to_resume(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await world.controller.saves.begin(A, None)
    assert begun.folder == "tmp_snapshot_000001-aaaaaaaa" and begun.snapshot == "snapshot_000001"
    assert world.controller.job.admission.is_open  # nothing stands still yet
    assert await world.controller.saves.close_admission(A, 1) == 0
    assert not world.controller.status().admission_open
    world.clock.now += 2
    answer = await world.controller.saves.cut(A, begun.folder, 5)
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
    assert world.controller.saves.resume(A, begun.snapshot) == 3
    assert world.controller.saves.resume(A, begun.snapshot) == 3  # repeatable
    status = world.controller.status()
    assert status.admission_open and status.checkpoint_id is None
    assert status.last_snapshot == "snapshot_000001"
    await asyncio.sleep(0.02)
    assert world.folder.discarded == []
    data = (world.config.job_folder / begun.folder / LEDGER_FILE).read_bytes()
    saved = RecoveryLedger.decode(data)
    assert saved["p0_g0"].run.state is RunPhase.STARTED
    assert saved["p0_g0"].staging_keys == ["1/p0_g0/call-0"]
    assert saved["p0_g1"].run.state is RunPhase.WAITING


async def test_each_operation_has_its_effect_once(tmp_path: Path) -> None:
    world = await running(tmp_path)
    first, second = await asyncio.gather(
        world.controller.saves.begin(A, None), world.controller.saves.begin(A, None)
    )
    assert first == second == await world.controller.saves.begin(A, None)
    assert world.folder.number == 1
    await world.controller.saves.close_admission(A, 1)
    world.clock.now += 5
    await world.controller.saves.close_admission(A, 1)
    world.host.gate.clear()
    cuts = [asyncio.create_task(world.controller.saves.cut(A, first.folder, 5)) for _ in range(2)]
    await world.host.began.wait()
    await asyncio.sleep(0.01)
    world.host.gate.set()
    answers = await asyncio.gather(*cuts)
    assert answers[0] == answers[1] == await world.controller.saves.cut(A, first.folder, 5)
    assert len(world.host.saves) == 1
    assert world.controller.saves.resume(A, None) == 5  # from the first close


async def test_a_cancelled_caller_does_not_end_the_cut(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.gate.clear()
    caller = asyncio.create_task(world.controller.saves.cut(A, begun.folder, 5))
    await world.host.began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    world.host.gate.set()
    assert (await world.controller.saves.cut(A, begun.folder, 5)).unfinished == 4
    assert len(world.host.saves) == 1


async def test_begin_refuses_a_second_save_and_its_id_is_not_spent(tmp_path: Path) -> None:
    world = await running(tmp_path)
    await world.controller.saves.begin(A, None)
    answer = await world.controller.saves.begin(B, None)
    assert answer.refusal == "checkpoint_running" and answer.details == {"checkpoint_id": A}
    assert answer.reason is not None and "wait for it" in answer.reason and A not in answer.reason
    world.controller.saves.resume(A, None)
    assert await refusal(world, B) is None


async def test_a_failed_begin_leaves_nothing_held(tmp_path: Path) -> None:
    world = await running(tmp_path)
    reserve = world.folder.reserve

    def refuse(checkpoint_id: str, incarnation: int) -> tuple[str, str]:
        raise DataPlaneLost("no disk")

    world.folder.reserve = refuse  # type: ignore[method-assign]
    with pytest.raises(DataPlaneLost):
        await world.controller.saves.begin(A, None)
    assert world.controller.status().checkpoint_id is None
    world.folder.reserve = reserve  # type: ignore[method-assign]
    assert await refusal(world, A) is None


async def test_a_resume_during_begin_wins(tmp_path: Path) -> None:
    """Break: rl/controller/save.py: make room for a save that has ended, or reserve for it."""
    world = await running(tmp_path)
    world.folder.free, world.folder.left_over = 0, 1
    world.gym.status_gate.clear()
    begin = asyncio.create_task(world.controller.saves.begin(A, None))
    await asyncio.sleep(0.01)
    assert world.controller.saves.resume(A, None) is None
    world.gym.status_gate.set()
    with pytest.raises(StaleCheckpoint):
        await begin
    await until(lambda: world.folder.discarded == [A])
    assert world.folder.number == 0, "no folder was reserved"
    assert world.folder.left_over == 1, "nothing was deleted"
    assert world.controller.status().checkpoint_id is None


async def test_a_slow_begin_that_has_ended_touches_nothing_of_the_next_save(
    tmp_path: Path,
) -> None:
    """Otherwise its sweep would delete the folder that the next save writes in.

    Break: rl/controller/save.py: let two begins look at the folder at the same time.
    """
    world = await running(tmp_path)
    reached, slow, done = threading.Event(), threading.Event(), []

    def newest_bytes() -> int:
        if not reached.is_set():  # the first one alone is slow
            reached.set()
            slow.wait()
        return 0

    world.folder.newest_bytes = newest_bytes  # type: ignore[method-assign]
    for name in ("make_room", "reserve"):
        world.folder.__dict__[name] = _noted(getattr(world.folder, name), name, done)
    first = asyncio.create_task(world.controller.saves.begin(A, "first"))
    assert await asyncio.to_thread(reached.wait, 10)
    world.controller.saves.resume(A, None)
    second = asyncio.create_task(world.controller.saves.begin(B, "second"))
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


async def test_closing_waits_for_what_was_owed(tmp_path: Path) -> None:
    world = await running(tmp_path)
    world.gym.acknowledge_gate.clear()
    world.gym.finish("p0_g1")
    await until(lambda: world.controller.status().owed == 1)
    await world.controller.saves.begin(A, None)
    with pytest.raises(DeadlineExceeded) as caught:
        await world.controller.saves.close_admission(A, 0.05)
    assert caught.value.details["rollouts"] == ["p0_g1"]
    closing = asyncio.create_task(world.controller.saves.close_admission(A, 5))
    await asyncio.sleep(0.01)
    assert not closing.done()
    world.gym.acknowledge_gate.set()
    assert await closing == 1


async def test_steps_in_another_order_or_of_another_save_are_refused(tmp_path: Path) -> None:
    world = await running(tmp_path)
    with pytest.raises(InvalidPhase):
        await world.controller.saves.close_admission(A, 1)
    begun = await world.controller.saves.begin(A, None)
    with pytest.raises(InvalidPhase):
        await world.controller.saves.cut(A, begun.folder, 1)
    with pytest.raises(CheckpointConflict):
        await world.controller.saves.close_admission(B, 1)
    await world.controller.saves.close_admission(A, 1)
    with pytest.raises(InvalidRequest):
        await world.controller.saves.cut(A, "tmp_snapshot_000009-aaaaaaaa", 1)
    assert not world.controller.saves.renew(B, 5)
    assert world.controller.saves.resume(B, None) is None
    assert not world.controller.job.admission.is_open  # A still holds it


async def test_a_deadline_in_the_save_ends_the_cut_and_a_repeat_waits(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.gate.clear()
    with pytest.raises(DeadlineExceeded):
        await world.controller.saves.cut(A, begun.folder, 0.05)
    await mutate(world)  # the barrier is free
    with pytest.raises(DataPlaneBusy):
        await world.controller.saves.cut(A, begun.folder, 0.05)
    world.host.gate.set()
    await until(lambda: not world.controller.job.storing.running)
    await world.controller.saves.cut(A, begun.folder, 5)


async def test_an_ended_id_can_do_nothing_any_more(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.controller.saves.resume(A, None)
    for late in (
        world.controller.saves.begin(A, None),
        world.controller.saves.close_admission(A, 1),
        world.controller.saves.cut(A, begun.folder, 1),
    ):
        with pytest.raises(StaleCheckpoint):
            await late
    assert not world.controller.saves.renew(A, 30)
    assert world.controller.job.admission.is_open
    # a resume that comes before everything else counts too
    assert world.controller.saves.resume(B, None) is None
    with pytest.raises(StaleCheckpoint):
        await world.controller.saves.begin(B, None)


async def test_a_resume_during_the_cut_condemns_it(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.saves.cut(A, begun.folder, 5))
    await world.host.began.wait()
    world.controller.saves.resume(A, None)
    with pytest.raises(StaleCheckpoint):
        await cut
    assert world.controller.job.admission.is_open
    await mutate(world)  # the barrier is free
    assert await refusal(world) == "data_plane_busy"
    world.host.gate.set()
    await until(lambda: world.folder.discarded == [A])
    assert await refusal(world) is None


async def test_the_lease_end_during_the_save_leaves_nothing_paused(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.saves.cut(A, begun.folder, 60))
    await world.host.began.wait()
    world.gym.finish("p0_g1")
    await asyncio.sleep(0.01)
    assert world.plane.puts == []
    world.lease_clock.now += 31
    assert not world.controller.saves.renew(A, 30)  # looked at before the timer
    status = world.controller.status()
    assert status.admission_open and status.checkpoint_id is None
    with pytest.raises(StaleCheckpoint):
        await cut
    await until(lambda: world.plane.puts == ["p0_g1"])  # rollouts do not wait for the save
    assert await refusal(world) == "data_plane_busy"
    assert world.folder.discarded == []  # not before TransferQueue's save has returned
    world.host.gate.set()
    await until(lambda: world.folder.discarded == [A])
    for _ in range(300):
        if await refusal(world) is None:
            return
        await asyncio.sleep(0.01)
    pytest.fail("it is still busy 3 s after TransferQueue's save has returned")


async def test_the_lease_ends_by_its_timer(tmp_path: Path) -> None:
    world = World(tmp_path, save={"lease_s": 0.05})
    # the timer runs on the loop's clock, the lease on the test's
    ticking = world.controller.saves._lease
    await world.start()
    world.hold("p0_g0")
    ticking._clock = asyncio.get_running_loop().time
    await closed(world)
    assert not world.controller.job.admission.is_open
    await until(lambda: world.controller.job.admission.is_open)
    await until(lambda: world.folder.discarded == [A])


async def test_a_lease_that_ends_after_the_save_condemns_the_cut(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    confirm = world.gym.confirm_held

    async def slowly(checkpoint_id: str) -> list:
        world.lease_clock.now += 31
        return await confirm(checkpoint_id)

    world.gym.confirm_held = slowly  # type: ignore[method-assign]
    with pytest.raises(StaleCheckpoint):
        await world.controller.saves.cut(A, begun.folder, 5)
    await until(lambda: world.folder.discarded == [A])


async def test_renewing_and_every_call_extend_the_lease(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await world.controller.saves.begin(A, None)
    for step in (
        lambda: world.controller.saves.close_admission(A, 1),
        lambda: world.controller.saves.cut(A, begun.folder, 5),
    ):
        world.lease_clock.now += 29
        await step()
        assert world.controller.status().lease_left_s == 30
    world.lease_clock.now += 29
    assert world.controller.saves.renew(A, 30)
    assert world.controller.status().lease_left_s == 30


async def test_a_publish_that_the_lease_did_not_see_still_counts(tmp_path: Path) -> None:
    """The publish had won the rename before the lease ended."""
    world = await running(tmp_path)
    begun = await closed(world)
    await world.controller.saves.cut(A, begun.folder, 5)
    world.clock.now += 40
    world.lease_clock.now += 40
    assert world.controller.status().admission_open
    assert world.controller.saves.resume(A, begun.snapshot) == 40
    assert world.controller.status().last_snapshot == begun.snapshot
    assert await refusal(world) == "unchanged"


async def test_a_failed_job_ends_its_save_and_refuses_the_next(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.controller.job.fail(DataPlaneLost("gone"))
    with pytest.raises(ControllerLost, match="restore it"):
        await world.controller.saves.cut(A, begun.folder, 5)
    with pytest.raises(ControllerLost):
        await world.controller.saves.begin(B, None)
    assert world.controller.saves.resume(A, None) == 0
    await until(lambda: world.folder.discarded == [A])


async def test_a_job_that_fails_during_the_cut_condemns_it(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.saves.cut(A, begun.folder, 5))
    await world.host.began.wait()
    world.controller.job.fail(DataPlaneLost("gone"))
    with pytest.raises(StaleCheckpoint):
        await cut
    world.host.gate.set()
    await until(lambda: world.folder.discarded == [A])
