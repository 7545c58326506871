"""The tries to bring a job back: back-off, giving up, starting over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.workers.observations import WELL, cluster_view, observation, status
from tests.workers.supervisor.given import FINISHED, LOST, Given, in_turn
from workers.errors import NotRunning, ProcessFailed, Stopped
from workers.job import commands as job_runs
from workers.job.restarts import Restarter
from workers.job.workflows import WorkflowFailed
from workers.supervisor import recovery
from workers.supervisor.decide import Observation
from workers.supervisor.recovery import GIVE_UP_AFTER, GivenUp, backoff_s


async def test_a_loss_is_answered_by_a_restore_that_replaces(given: Given) -> None:
    await given.run(in_turn(given, iter([WELL, LOST, FINISHED])))
    assert [(b["replace"], b["fresh"]) for b in given.began] == [(True, False)]
    assert given.started == [("what is missing",)]
    assert given.event_log.restores == 1
    assert given.event_log.reasons == ["counter is gone"]
    assert given.told[0] == "counter is gone: bringing the job back now"
    assert given.told[-1].startswith("restored snapshot_000007 as incarnation 9")


async def test_without_a_snapshot_it_starts_over_and_says_so(given: Given) -> None:
    given.has_snapshot = False
    await given.run(in_turn(given, iter([LOST, FINISHED])))
    assert given.began[0]["fresh"] is True
    assert "there is no snapshot: starting over, as a new line" in given.told
    assert [event.what for event in given.event_log.events] == ["started_over"]


async def test_a_save_that_publishes_while_the_job_is_brought_back_is_restored(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server dies while the first save of the job is being published.

    Break: workers/supervisor/recovery.py: go by what was on disk when the loss was noticed; all
    is lost.
    """
    given.has_snapshot = False

    async def restart(*_: Any, **__: Any) -> None:
        given.has_snapshot = True

    monkeypatch.setattr(Restarter, "restart", restart)
    await given.run(in_turn(given, iter([LOST, FINISHED])))
    assert given.began[0]["fresh"] is False
    assert [event.what for event in given.event_log.events] == ["restored"]


async def test_a_recovery_that_fails_is_tried_again_after_a_printed_wait(given: Given) -> None:
    given.outcomes = [NotRunning("no Temporal"), NotRunning("no Temporal")]
    await given.run(in_turn(given, iter([LOST, LOST, LOST, FINISHED])))
    assert len(given.began) == 3
    waits = [line.rpartition(" back ")[2] for line in given.told if "bringing" in line]
    assert waits == ["now", "in 0.001 s", "in 0.002 s"]
    assert given.event_log.restores == 1


async def test_recoveries_that_get_nowhere_end_at_last(given: Given) -> None:
    given.outcomes = [NotRunning("no Temporal")] * (GIVE_UP_AFTER + 1)
    with pytest.raises(GivenUp, match="got nowhere"):
        await given.run(lambda recovering: observation(recovering=True) if recovering else LOST)
    assert len(given.began) == GIVE_UP_AFTER


@pytest.mark.parametrize("finished", [0, 1])
async def test_what_is_left_of_a_lost_life_does_not_count_as_a_success(
    given: Given, monkeypatch: pytest.MonkeyPatch, finished: int
) -> None:
    """Its server cannot be started, and its controller answers, finishing rollouts of others.

    Break: workers/supervisor/recovery.py: begin to count again at each answer; no wait, and no
    end of it.
    """
    monkeypatch.setattr(recovery, "STEADY_S", 60 if finished else 0)
    tries = 0

    async def restart(*_: Any, **__: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 2 * GIVE_UP_AFTER:
            raise Stopped("it would go on for ever")
        raise ProcessFailed("counter has ended")

    monkeypatch.setattr(Restarter, "restart", restart)
    rollouts = 0

    def look(recovering: bool) -> Observation:
        nonlocal rollouts
        rollouts += finished
        job = cluster_view(status(finished=rollouts))
        return observation(recovering=recovering, job=job, gone=() if recovering else {"counter"})

    with pytest.raises(GivenUp, match="got nowhere"):
        await given.run(look)
    assert tries == GIVE_UP_AFTER
    waits = [line.rpartition(" back ")[2] for line in given.told if "bringing" in line]
    assert waits[:3] == ["now", "in 0.001 s", "in 0.002 s"]


async def test_what_no_repetition_mends_is_not_repeated(given: Given) -> None:
    given.outcomes = [WorkflowFailed("no_snapshot", "none is usable", "demo/restore/1")]
    with pytest.raises(GivenUp, match="none is usable"):
        await given.run(lambda recovering: observation(recovering=True) if recovering else LOST)
    assert len(given.began) == 1


async def test_a_second_loss_during_a_recovery_begins_it_again(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = asyncio.Event()
    begin = job_runs.begin

    async def begin_once_more(*words: Any, **options: Any) -> job_runs.Begun:
        if not hanging.is_set():
            hanging.set()
            await asyncio.Event().wait()
        return await begin(*words, **options)

    monkeypatch.setattr(job_runs, "begin", begin_once_more)
    lost_again = False

    def look(recovering: bool) -> Observation:
        nonlocal lost_again
        if not recovering:
            return FINISHED if given.began else LOST
        if hanging.is_set() and not lost_again:
            lost_again = True
            return observation(recovering=True, gone={"simple_agent"})
        return observation(recovering=True)

    await given.run(look)
    assert given.event_log.restores == 1
    assert given.event_log.reasons == ["counter is gone", "simple_agent is gone"]


async def test_processes_that_die_one_after_the_other_are_each_told_once(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: forget, at the second loss, what the first recovery was to start.

    Each look then finds the other one gone, and twenty of them give the job up within seconds.
    """
    monkeypatch.setattr(recovery, "backoff_s", lambda _: 0.05)
    gone = iter([{"counter"}])

    def look(recovering: bool) -> Observation:
        if given.began:
            return FINISHED
        return observation(recovering=recovering, gone=next(gone, {"counter", "simple_agent"}))

    await given.run(look)
    lost = [line.partition(":")[0] for line in given.told if "bringing the job back" in line]
    assert lost == ["counter is gone", "simple_agent is gone"]
    assert "starting counter, simple_agent" in given.told
    assert len(given.began) == 1


def test_the_backoff_starts_at_once_doubles_and_is_bounded() -> None:
    assert [backoff_s(n) for n in (1, 2, 3, 4, 7, 50)] == [0, 1, 2, 4, 30, 30]
