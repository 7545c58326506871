"""The cut: one moment of records and TransferQueue, or no answer."""

import asyncio
import threading
from pathlib import Path

import pytest

from gym.protocol import (
    DeadlineExceeded,
    NotReady,
)
from rl.errors import (
    DataPlaneLost,
    InventoryMismatch,
    NotHeld,
)
from rl.messages import ServerReport
from tests.rl.controller.saving import A, closed, mutate, refusal, running
from tests.rl.fakes import until


async def test_a_cut_with_an_acknowledgement_owed_is_refused(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.gym.acknowledge_gate.clear()
    world.gym.finish("p0_g1")
    await until(lambda: world.controller.status().owed == 1)
    with pytest.raises(DeadlineExceeded):
        await world.controller.saves.cut(A, begun.folder, 0.05)
    assert world.host.saves == []

    async def paid_too_early(_: object = None) -> None: ...

    world.controller.job.ledger.wait_paid = paid_too_early  # type: ignore[method-assign]
    with pytest.raises(NotReady):
        await world.controller.saves.cut(A, begun.folder, 1)
    assert world.host.saves == []


async def test_nothing_changes_between_the_capture_and_the_end_of_the_save(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.gate.clear()
    cut = asyncio.create_task(world.controller.saves.cut(A, begun.folder, 5))
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
    world = await running(tmp_path)
    begun = await closed(world)
    await world.plane.clear("rollout_staging", ["1/p0_g0/call-0"])
    with pytest.raises(InventoryMismatch):
        await world.controller.saves.cut(A, begun.folder, 5)
    assert world.host.saves == []
    await mutate(world)  # the barrier is free
    world.plane.stage("1/p0_g0/call-0")
    await world.controller.saves.cut(A, begun.folder, 5)  # a failed try may be repeated


async def test_a_server_that_no_longer_holds_fails_the_cut(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.gym.held_error = NotHeld("lease ended", participant="counter")
    with pytest.raises(NotHeld):
        await world.controller.saves.cut(A, begun.folder, 5)


async def test_a_failed_data_plane_save_fails_the_cut_alone(tmp_path: Path) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    world.host.fail = DataPlaneLost("TransferQueue did not save")
    with pytest.raises(DataPlaneLost):
        await world.controller.saves.cut(A, begun.folder, 5)
    world.controller.saves.resume(A, None)
    assert world.controller.status().state == "running"
    await until(lambda: world.folder.discarded == [A])
    world.host.fail = None
    assert await refusal(world) is None


async def test_files_are_written_off_the_loop(tmp_path: Path, monkeypatch) -> None:
    world = await running(tmp_path)
    begun = await closed(world)
    writers = []

    def note(path: Path, data: bytes) -> None:
        writers.append(threading.current_thread())

    monkeypatch.setattr("rl.records.snapshot_part.write_durably", note)
    await world.controller.saves.cut(A, begun.folder, 5)
    assert len(writers) == 3 and threading.main_thread() not in writers
