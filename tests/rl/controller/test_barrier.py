"""The barrier: mutations together, a cut alone."""

import asyncio

import pytest

from rl.controller.barrier import Barrier


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Holder:
    """A section held open by a task of its own."""

    def __init__(self, section) -> None:
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(section))

    async def _run(self, section) -> None:
        async with section:
            self.inside.set()
            await self.leave.wait()

    async def end(self) -> None:
        self.leave.set()
        await self.task


async def test_mutations_run_together() -> None:
    barrier = Barrier()
    first, second = Holder(barrier.mutation()), Holder(barrier.mutation())
    await _settle()
    assert first.inside.is_set() and second.inside.is_set()
    await first.end()
    await second.end()


async def test_a_cut_waits_for_mutations_and_holds_new_ones_back() -> None:
    barrier = Barrier()
    running = Holder(barrier.mutation())
    await _settle()
    cut = Holder(barrier.cut())
    await _settle()
    late = Holder(barrier.mutation())
    await _settle()
    assert not cut.inside.is_set() and not late.inside.is_set()
    await running.end()
    await _settle()
    assert cut.inside.is_set() and not late.inside.is_set()
    await cut.end()
    await _settle()
    assert late.inside.is_set()
    await late.end()


async def test_cuts_are_exclusive() -> None:
    barrier = Barrier()
    first, second = Holder(barrier.cut()), Holder(barrier.cut())
    await _settle()
    assert first.inside.is_set() and not second.inside.is_set()
    await first.end()
    await _settle()
    assert second.inside.is_set()
    await second.end()


async def test_a_cancelled_wait_for_a_cut_lets_mutations_go_on() -> None:
    barrier = Barrier()
    running = Holder(barrier.mutation())
    await _settle()
    cut = Holder(barrier.cut())
    await _settle()
    late = Holder(barrier.mutation())
    cut.task.cancel()
    await _settle()
    assert late.inside.is_set()
    await running.end()
    await late.end()


async def test_a_cancelled_cut_releases_the_barrier() -> None:
    barrier = Barrier()
    cut = Holder(barrier.cut())
    await _settle()
    late = Holder(barrier.mutation())
    await _settle()
    assert not late.inside.is_set()
    cut.task.cancel()
    await _settle()
    assert late.inside.is_set()
    await late.end()


async def test_the_version_rises_with_each_mutation_also_with_a_failed_one() -> None:
    barrier = Barrier()
    async with barrier.mutation():
        assert barrier.version == 0
    with pytest.raises(KeyError):
        async with barrier.mutation():
            raise KeyError
    async with barrier.cut():
        pass
    assert barrier.version == 2


async def test_a_section_inside_a_section_is_refused_and_the_barrier_stays_usable() -> None:
    """A mutation inside a mutation would wait for ever if a cut waits for the outer one."""
    barrier = Barrier()
    for outer in (barrier.mutation, barrier.cut):
        async with outer():
            for inner in (barrier.mutation, barrier.cut):
                with pytest.raises(RuntimeError, match="inside a section"):
                    async with inner():
                        pass
    assert barrier.version == 1
    async with asyncio.timeout(1), barrier.cut():
        pass
