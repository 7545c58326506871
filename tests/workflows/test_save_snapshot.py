"""`SaveSnapshot` against the real Temporal server, with every outcome of its activities."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.contract import SaveInput, SaveOutcome, SaveResult
from tests.workflows.conftest import SAVE_PHASES, Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]
JOB = SaveInput(job_id="demo")
UNTIL_PUBLISH = SAVE_PHASES[1:5]


def fatal(code: str = "not_ready") -> ApplicationError:
    return ApplicationError("policy_model: 1 call", {"blockers": 1}, type=code, non_retryable=True)


async def failure_of(handle: Any) -> BaseException:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert caught.value.cause is not None
    return caught.value.cause


async def outcome_of(handle: Any) -> str:
    description = await handle.describe()
    return str(description.search_attributes["TurnpointOutcome"][0])


async def test_a_save_runs_the_rows_of_the_table_in_order(bench: Bench) -> None:
    handle = await bench.start("SaveSnapshot", JOB)
    result = await bench.client.get_workflow_handle_for(_run(), handle.id).result()
    assert bench.fakes.calls == [*SAVE_PHASES, "prune_snapshots"]
    assert result.outcome is SaveOutcome.PUBLISHED
    assert result.snapshot == "snapshot_000001"
    assert result.pause_s == 0.5
    assert result.pruned == ["snapshot_000000"]
    assert [phase.phase for phase in result.phases] == SAVE_PHASES
    attributes = (await handle.describe()).search_attributes
    assert attributes["TurnpointOutcome"] == ["published"]
    assert attributes["TurnpointPauseMs"] == [500]
    assert attributes["TurnpointParkedRollouts"] == [4]
    assert attributes["TurnpointBytes"] == [10]


def _run() -> Any:
    from workflows import SaveSnapshot

    return SaveSnapshot.run


async def test_every_later_activity_carries_the_controllers_incarnation_and_one_id(
    bench: Bench,
) -> None:
    result = SaveResult.model_validate(await (await bench.start("SaveSnapshot", JOB)).result())
    for phase in SAVE_PHASES[1:]:
        assert bench.fakes.requests[phase].incarnation == 3
        assert bench.fakes.requests[phase].checkpoint_id == result.checkpoint_id
    counts = {"continuations": 4, "unfinished": 4, "finished": 1, "rows_put": 1}
    assert bench.fakes.requests["publish_snapshot"].counts == counts


@pytest.mark.parametrize("phase", UNTIL_PUBLISH)
async def test_a_failure_before_publish_compensates_and_names_itself(
    bench: Bench, phase: str
) -> None:
    """Invariant 2. Break: workflows/save_snapshot.py: open nothing again in `_undo`; seen red."""
    bench.fakes.fail[phase] = [fatal()]
    handle = await bench.start("SaveSnapshot", JOB)
    cause = await failure_of(handle)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "not_ready"
    assert cause.message == "policy_model: 1 call"
    assert cause.details == ({"blockers": 1},)
    assert bench.fakes.calls[-2:] == ["unpublish_snapshot", "resume_checkpoint"]
    assert "publish_snapshot" not in bench.fakes.calls
    assert await outcome_of(handle) == "failed"


@pytest.mark.parametrize("phase", UNTIL_PUBLISH)
async def test_a_cancel_before_publish_compensates(bench: Bench, phase: str) -> None:
    bench.fakes.hang.add(phase)
    handle = await bench.start("SaveSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event(phase).wait(), 10)
    for _ in range(3):  # any number of cancellations
        await handle.cancel()
    assert isinstance(await failure_of(handle), CancelledError)
    assert bench.fakes.calls[-2:] == ["unpublish_snapshot", "resume_checkpoint"]
    assert bench.fakes.published is None
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert await outcome_of(handle) == "cancelled"


@pytest.mark.parametrize("phase", ["begin_checkpoint", *UNTIL_PUBLISH])
async def test_a_cancel_is_kept_though_the_activity_that_runs_still_succeeds(
    bench: Bench, phase: str
) -> None:
    """The SDK waits for the activity and then returns its result, without the cancellation."""
    release = bench.fakes.deaf_until[phase] = asyncio.Event()
    handle = await bench.start("SaveSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event(phase).wait(), 10)
    await handle.cancel()
    await asyncio.sleep(0.3)
    release.set()
    assert isinstance(await failure_of(handle), CancelledError)
    assert bench.fakes.calls[-2:] == ["unpublish_snapshot", "resume_checkpoint"]
    assert "publish_snapshot" not in bench.fakes.calls


async def test_a_cancel_in_the_compensation_does_not_stop_it(bench: Bench) -> None:
    bench.fakes.fail["commit_checkpoint"] = [fatal()]
    release = bench.fakes.hang_uncancellable["unpublish_snapshot"] = asyncio.Event()
    handle = await bench.start("SaveSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event("unpublish_snapshot").wait(), 10)
    await handle.cancel()
    await handle.cancel()
    release.set()
    await failure_of(handle)
    assert bench.fakes.calls[-2:] == ["unpublish_snapshot", "resume_checkpoint"]
    assert bench.fakes.calls.count("unpublish_snapshot") == 1


async def test_a_cancel_during_publish_waits_for_the_disk(bench: Bench) -> None:
    release = bench.fakes.hang_uncancellable["publish_snapshot"] = asyncio.Event()
    handle = await bench.start("SaveSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event("publish_snapshot").wait(), 10)
    await handle.cancel()
    await asyncio.sleep(0.3)
    release.set()
    result = SaveResult.model_validate(await handle.result())
    assert result.outcome is SaveOutcome.PUBLISHED
    assert result.reason is not None and "cancelled too late" in result.reason
    assert "unpublish_snapshot" not in bench.fakes.calls
    assert "resume_checkpoint" in bench.fakes.calls


async def test_a_publish_whose_answer_is_lost_is_published_if_the_disk_says_so(
    bench: Bench,
) -> None:
    bench.fakes.fail["publish_snapshot"] = [fatal("internal")]
    bench.fakes.lose_answer.add("publish_snapshot")
    result = SaveResult.model_validate(await (await bench.start("SaveSnapshot", JOB)).result())
    assert result.outcome is SaveOutcome.PUBLISHED
    assert result.snapshot == "snapshot_000001"
    assert bench.fakes.requests["resume_checkpoint"].published == "snapshot_000001"


async def test_a_publish_that_failed_is_undone(bench: Bench) -> None:
    bench.fakes.fail["publish_snapshot"] = [fatal("publish_refused")]
    cause = await failure_of(await bench.start("SaveSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "publish_refused"
    assert bench.fakes.calls[-2:] == ["unpublish_snapshot", "resume_checkpoint"]


async def test_the_disk_is_asked_until_it_answers_once_a_publish_was_asked_for(
    bench: Bench,
) -> None:
    bench.fakes.fail["publish_snapshot"] = [fatal("internal")]
    bench.fakes.lose_answer.add("publish_snapshot")
    bench.fakes.fail["unpublish_snapshot"] = [fatal("folder_error")]
    result = SaveResult.model_validate(await (await bench.start("SaveSnapshot", JOB)).result())
    assert result.outcome is SaveOutcome.PUBLISHED
    asked = [
        call for call in bench.fakes.calls if call in ("unpublish_snapshot", "resume_checkpoint")
    ]
    assert asked[:3] == ["unpublish_snapshot", "resume_checkpoint", "unpublish_snapshot"]


async def test_a_resume_that_fails_after_publish_is_said_and_stays_published(bench: Bench) -> None:
    bench.fakes.fail["resume_checkpoint"] = [fatal("stale_incarnation")]
    result = SaveResult.model_validate(await (await bench.start("SaveSnapshot", JOB)).result())
    assert result.outcome is SaveOutcome.PUBLISHED
    assert not result.resumed


async def test_a_begin_whose_answer_is_lost_is_undone_by_its_id_alone(bench: Bench) -> None:
    bench.fakes.fail["begin_checkpoint"] = [fatal("internal")]
    bench.fakes.lose_answer.add("begin_checkpoint")
    await failure_of(await bench.start("SaveSnapshot", JOB))
    assert bench.fakes.calls == ["begin_checkpoint", "unpublish_snapshot", "resume_checkpoint"]
    assert bench.fakes.requests["resume_checkpoint"].incarnation is None


async def test_a_refusal_fails_a_manual_save_and_skips_a_scheduled_one(bench: Bench) -> None:
    bench.fakes.refusal = "unchanged"
    cause = await failure_of(await bench.start("SaveSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "unchanged"
    scheduled = SaveInput(job_id="demo", trigger="scheduled")
    handle = await bench.start("SaveSnapshot", scheduled)
    result = SaveResult.model_validate(await handle.result())
    assert result.outcome is SaveOutcome.SKIPPED
    assert await outcome_of(handle) == "skipped"
    assert bench.fakes.calls == ["begin_checkpoint", "begin_checkpoint"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"job_id": "demo", "nmae": "SECRET-VALUE"}, "nmae"),
        ({"job_id": "no spaces: SECRET-VALUE"}, "job_id"),
        ({}, "job_id"),
        (["SECRET-VALUE"], "input"),
        ("SECRET-VALUE", "input"),
        (None, "input"),
    ],
)
async def test_bad_input_fails_at_once_naming_the_field_and_hiding_its_value(
    bench: Bench, given: Any, named: str
) -> None:
    handle = await bench.start("SaveSnapshot", given, run_timeout=timedelta(seconds=20))
    cause = await failure_of(handle)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "invalid_request"
    assert named in cause.message
    history = (await handle.fetch_history()).to_json()
    failed = history[history.index("workflowExecutionFailedEventAttributes") :]
    assert "SECRET-VALUE" not in failed
    assert bench.fakes.calls == []


async def test_a_failed_prune_does_not_fail_the_save(bench: Bench) -> None:
    bench.fakes.fail["prune_snapshots"] = [fatal("internal")]
    result = SaveResult.model_validate(await (await bench.start("SaveSnapshot", JOB)).result())
    assert result.outcome is SaveOutcome.PUBLISHED
    assert result.pruned == []


async def test_details_show_the_phase_table(bench: Bench) -> None:
    bench.fakes.hang.add("prepare_checkpoint")
    handle = await bench.start("SaveSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event("prepare_checkpoint").wait(), 10)
    progress = await handle.query("progress")
    assert progress["phase"] == "prepare_checkpoint"
    assert [done["phase"] for done in progress["done"]] == SAVE_PHASES[:2]
    details = await handle.query("__temporal_workflow_metadata")
    assert "**prepare_checkpoint**" in str(details)
    await handle.cancel()
    await failure_of(handle)
