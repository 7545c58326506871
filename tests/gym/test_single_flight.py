"""Run once, join, replay: what every owner of a `SingleFlight` relies on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gym.protocol import RequestConflict, StaleAttempt
from gym.single_flight import SingleFlight

TIMEOUT_S = 5


class Work:
    """Counts its runs; each ends when it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.runs += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return self.runs


def always(_: object) -> bool:
    return True


async def begun(*tasks: asyncio.Task[int]) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


@pytest.fixture
def flights() -> SingleFlight[str]:
    return SingleFlight("this id", participant="server")


async def test_a_repeat_joins_the_run_and_a_later_one_gets_the_recorded_answer(
    flights: SingleFlight[str],
) -> None:
    work = Work()
    first = asyncio.create_task(flights.run("a", 1, work, record=always))
    second = asyncio.create_task(flights.run("a", 1, work, record=always))
    await begun(first, second)
    assert flights.running == ["a"] and "a" in flights and flights.answer("a") is None
    work.may_end.set()
    assert await asyncio.gather(first, second) == [1, 1]
    assert await flights.run("a", 1, work, record=always) == 1
    assert work.runs == 1 and flights.running == [] and flights.answers == [1]


async def test_an_answer_that_is_not_to_be_recorded_is_computed_anew(
    flights: SingleFlight[str],
) -> None:
    work = Work()
    work.may_end.set()
    assert await flights.run("a", 1, work) == 1
    assert await flights.run("a", 1, work, record=lambda runs: runs > 2) == 2
    assert "a" not in flights
    assert await flights.run("a", 1, work, record=lambda runs: runs > 2) == 3
    assert await flights.run("a", 1, work) == 3


async def test_another_body_is_refused_while_it_runs_and_once_it_is_recorded(
    flights: SingleFlight[str],
) -> None:
    """Break: gym/single_flight.py: compare no body."""
    work = Work()
    first = asyncio.create_task(flights.run("a", 1, work, record=always))
    await begun(first)
    with pytest.raises(RequestConflict, match="this id came with another body") as refused:
        await flights.run("a", 2, work, details={"id": "a"})
    assert refused.value.details == {"id": "a"} and refused.value.participant == "server"
    work.may_end.set()
    await first
    with pytest.raises(RequestConflict):
        await flights.run("a", 2, work)
    flights.forget("a")
    assert await flights.run("a", 2, work) == 2


async def test_a_caller_that_leaves_ends_nothing(flights: SingleFlight[str]) -> None:
    """Break: gym/single_flight.py: await the task itself."""
    work = Work()
    first = asyncio.create_task(flights.run("a", 1, work, record=always))
    await begun(first)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert flights.running == ["a"]
    work.may_end.set()
    assert await flights.run("a", 1, work) == 1


async def test_a_failure_reaches_every_caller_and_is_not_recorded(
    flights: SingleFlight[str],
) -> None:
    work = Work()
    work.error = ValueError("once")
    callers = [asyncio.create_task(flights.run("a", 1, work, record=always)) for _ in range(2)]
    await begun(*callers)
    work.may_end.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(error) for error in found] == [ValueError, ValueError]
    work.error = None
    assert await flights.run("a", 1, work) == 2


async def test_the_error_of_work_that_all_callers_left_is_retrieved(
    flights: SingleFlight[str],
) -> None:
    """Break: gym/single_flight.py: look at no exception when the task has ended."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    work = Work()
    work.error = ValueError("nobody waits")
    caller = asyncio.create_task(flights.run("a", 1, work))
    await begun(caller)
    caller.cancel()
    await asyncio.wait([caller])
    work.may_end.set()
    await flights.settled("a")
    del caller
    gc.collect()
    assert complaints == []


async def test_a_cancelled_key_is_free_at_once_and_its_callers_get_the_owners_error(
    flights: SingleFlight[str],
) -> None:
    old, new = Work(), Work()
    first = asyncio.create_task(flights.run("a", 1, old, record=always))
    await begun(first)
    flights.cancel("a", StaleAttempt("a newer run exists"))
    second = asyncio.create_task(flights.run("a", 2, new, record=always))
    with pytest.raises(StaleAttempt, match="a newer run exists"):
        await first
    new.may_end.set()
    assert await second == 1
    flights.cancel("a", StaleAttempt("over"))
    assert "a" not in flights
    flights.cancel("never", StaleAttempt("over"))


async def test_an_answer_that_comes_in_spite_of_the_cancellation_is_not_recorded(
    flights: SingleFlight[str],
) -> None:
    async def stubborn() -> int:
        try:
            await asyncio.sleep(TIMEOUT_S)
        except asyncio.CancelledError:
            return 1
        return 0

    caller = asyncio.create_task(flights.run("a", 1, stubborn, record=always))
    await begun(caller)
    flights.cancel("a", StaleAttempt("over"))
    with pytest.raises(StaleAttempt):
        await caller
    assert "a" not in flights


async def test_settled_returns_when_nothing_of_the_key_runs(flights: SingleFlight[str]) -> None:
    await flights.settled("a")
    work = Work()
    caller = asyncio.create_task(flights.run("a", 1, work))
    await begun(caller)
    waiting = asyncio.create_task(flights.settled("a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    work.may_end.set()
    await asyncio.wait_for(waiting, TIMEOUT_S)
    await caller


async def test_during_spans_the_work_even_if_it_is_cancelled_before_its_first_step(
    flights: SingleFlight[str],
) -> None:
    """Break: gym/single_flight.py: enter and leave `during` inside the task."""
    entered: list[str] = []

    @contextmanager
    def during() -> Iterator[None]:
        entered.append("in")
        try:
            yield
        finally:
            entered.append("out")

    work = Work()
    caller = asyncio.create_task(flights.run("a", 1, work, during=during()))
    await asyncio.sleep(0)  # the caller has begun the task, which has not run yet
    assert entered == ["in"] and work.runs == 0
    flights.cancel("a", StaleAttempt("over"))
    with pytest.raises(StaleAttempt):
        await caller
    assert entered == ["in", "out"] and work.runs == 0


async def test_an_answer_from_elsewhere_is_replayed(flights: SingleFlight[str]) -> None:
    flights.put("a", 1, 7)
    assert await flights.run("a", 1, Work()) == 7
    with pytest.raises(RequestConflict):
        await flights.run("a", 2, Work())


async def test_aclose_ends_all_work(flights: SingleFlight[str]) -> None:
    works = Work(), Work()
    callers = [
        asyncio.create_task(flights.run(name, 1, work))
        for name, work in zip("ab", works, strict=True)
    ]
    await begun(*callers)
    await asyncio.wait_for(flights.aclose(), TIMEOUT_S)
    await asyncio.wait(callers, timeout=TIMEOUT_S)
    assert flights.running == [] and all(caller.cancelled() for caller in callers)
