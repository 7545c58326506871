"""Heartbeats, leases and deadlines of an activity, on the real Temporal server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Worker

from activities import leases
from activities.contract.save import CheckpointRequest
from activities.driving import PhaseClock, Renew, driving
from activities.errors import TypedFailures
from rl import actors
from tests.activities.drive_workflow import DriveOnce

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]
LEASE_S = 0.6


class Driven:
    """The activity `driven`: what runs in its body is the test's."""

    def __init__(self, client: Client, body: Callable[[PhaseClock], Awaitable[float]]) -> None:
        self.client = client
        self.body = body
        self.renewals: list[float] = []
        self.answered = 0
        self.held = True
        self.slow_s = 0.0
        self.renew: Renew = self.noted
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self.began = 0.0

    async def noted(self, lease_s: float) -> bool:
        assert LEASE_S / 2 < lease_s <= LEASE_S  # counted from the proof
        self.renewals.append(time.monotonic())
        await asyncio.sleep(self.slow_s)
        self.answered += 1
        return self.held

    @activity.defn(name="driven")
    async def driven(self, deadline: str) -> float:
        self.started.set()
        self.began = time.monotonic()
        try:
            async with driving(
                self.client,
                datetime.fromisoformat(deadline),
                lease_s=LEASE_S,
                renew=self.renew,
            ) as clock:
                return await self.body(clock)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.ended.set()


async def start(
    client: Client, driven: Driven, timeout_s: float = 10.0, tries: int = 1
) -> tuple[Any, Worker]:
    queue = f"drive-{uuid.uuid4()}"
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[DriveOnce],
        activities=[driven.driven],
        interceptors=[TypedFailures()],
    )
    handle = await client.start_workflow(
        DriveOnce.run, args=[timeout_s, tries], id=queue, task_queue=queue
    )
    return handle, worker


async def sleep_for(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def test_a_lease_is_renewed_every_third_while_the_activity_runs(temporal: Client) -> None:
    driven = Driven(temporal, lambda _: sleep_for(1.5))
    handle, worker = await start(temporal, driven)
    async with worker:
        await handle.result()
    assert driven.renewals[0] - driven.began < LEASE_S / 3, "the try before may have used it up"
    gaps = [b - a for a, b in zip(driven.renewals, driven.renewals[1:], strict=False)]
    assert len(driven.renewals) >= 3
    assert max(gaps) < LEASE_S


async def test_a_repeat_begins_when_the_leases_are_extended(temporal: Client) -> None:
    """Its body may be over sooner. Break: activities/driving.py: let a repeat's body begin."""
    before: list[int] = []

    async def fail_once(_: PhaseClock) -> float:
        before.append(driven.answered)
        if len(before) == 1:
            raise RuntimeError("the worker has died")
        return 0

    driven = Driven(temporal, fail_once)
    driven.slow_s = 0.3
    handle, worker = await start(temporal, driven, tries=2)
    async with worker:
        await handle.result()
    assert before == [0, 1]


async def test_nothing_is_renewed_and_the_body_ends_once_the_workflow_is_terminated(
    temporal: Client,
) -> None:
    driven = Driven(temporal, lambda _: sleep_for(20))
    handle, worker = await start(temporal, driven)
    async with worker:
        await asyncio.wait_for(driven.started.wait(), 5)
        await handle.terminate("test")
        terminated = time.monotonic()
        await asyncio.wait_for(driven.ended.wait(), 3)
    late = [at for at in driven.renewals if at > terminated + 0.2]
    assert late == []


async def test_nothing_is_renewed_while_temporal_does_not_answer(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 3. Break: activities/driving.py: renew without an answer; seen red."""

    async def out_of_reach(_: object) -> bool:
        return False

    monkeypatch.setattr("activities.driving._proven", out_of_reach)
    driven = Driven(temporal, lambda _: sleep_for(0.8))
    handle, worker = await start(temporal, driven)
    async with worker:
        await handle.result()
    assert driven.renewals == []


async def test_a_lease_that_has_ended_ends_the_activity_with_a_typed_failure(
    temporal: Client,
) -> None:
    driven = Driven(temporal, lambda _: sleep_for(20))
    driven.held = False
    handle, worker = await start(temporal, driven)
    async with worker:
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert isinstance(caught.value.cause, ActivityError)
    cause = caught.value.cause.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "stale_checkpoint"


async def test_one_late_answer_of_the_controller_costs_nothing(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers its first renewal after more than a third of the lease, and every later one.

    Break: activities/leases.py: let the error of that one renewal through.
    """
    asked = 0

    class Controller:
        class renew:
            @staticmethod
            async def remote(*_: object) -> bool:
                nonlocal asked
                asked += 1
                await asyncio.sleep(LEASE_S / 2 if asked == 1 else 0)
                return True

    async def found(_: str) -> type[Controller]:
        return Controller

    monkeypatch.setattr(actors, "find", found)
    request = CheckpointRequest(
        job_id="job", checkpoint_id="c1", incarnation=1, lease_s=LEASE_S, deadline=datetime.now(UTC)
    )
    driven = Driven(temporal, lambda _: sleep_for(2 * LEASE_S))
    driven.renew = leases.renewal(request)
    handle, worker = await start(temporal, driven)
    async with worker:
        assert await handle.result() == 2 * LEASE_S
    assert asked >= 2, "it was not asked again"


async def test_a_slow_renewal_costs_no_heartbeat(temporal: Client) -> None:
    """The heartbeat timeout is 1 s; a server that answers later must not end the try."""
    driven = Driven(temporal, lambda _: sleep_for(2.5))
    driven.slow_s = 1.5
    handle, worker = await start(temporal, driven)
    async with worker:
        assert await handle.result() == 2.5


async def test_the_time_left_counts_from_temporals_stamp_and_ends_typed(temporal: Client) -> None:
    seen: list[float] = []

    async def use_up(clock: PhaseClock) -> float:
        seen.append(clock.timeout_s())
        await asyncio.sleep(1.2)
        return clock.timeout_s()

    driven = Driven(temporal, use_up)
    handle, worker = await start(temporal, driven, timeout_s=1.0)
    async with worker:
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert 0 < seen[0] <= 1.0
    assert isinstance(caught.value.cause, ActivityError)
    cause = caught.value.cause.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "deadline_exceeded"


async def test_a_cancelled_workflow_cancels_the_body(temporal: Client) -> None:
    driven = Driven(temporal, lambda _: sleep_for(20))
    handle, worker = await start(temporal, driven)
    async with worker:
        await asyncio.wait_for(driven.started.wait(), 5)
        await handle.cancel()
        await asyncio.wait_for(driven.ended.wait(), 3)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert isinstance(driven.error, asyncio.CancelledError)


async def test_an_error_that_is_not_ours_shows_its_class_and_hides_its_text(
    temporal: Client,
) -> None:
    async def leak(_: PhaseClock) -> float:
        raise RuntimeError("the conversation was SECRET")

    handle, worker = await start(temporal, Driven(temporal, leak))
    async with worker:
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    history = (await handle.fetch_history()).to_json()
    assert "SECRET" not in history
    assert "RuntimeError" in history
