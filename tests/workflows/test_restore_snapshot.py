"""`RestoreSnapshot` against the real Temporal server, with every outcome of its activities."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.contract import RestoreInput, RestoreResult
from tests.workflows.conftest import Bench

PHASES = [
    "claim_job",
    "discover_capabilities",
    "select_snapshot",
    "load_data_plane",
    "restore_checkpoint",
    "start_controller",
    "discard_continuations",
    "resume_restored",
    "start_pumps",
]
pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]
JOB = RestoreInput(job_id="demo")


def fatal(code: str = "digest_mismatch") -> ApplicationError:
    return ApplicationError("gym/counter/sessions.jsonl", type=code, non_retryable=True)


async def failure_of(handle: Any) -> BaseException:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert caught.value.cause is not None
    return caught.value.cause


async def test_a_restore_runs_the_rows_of_the_table_in_order(bench: Bench) -> None:
    """Invariant 10. Break: workflows/restore_snapshot.py: resume before the discards; seen red."""
    handle = await bench.start("RestoreSnapshot", JOB)
    result = RestoreResult.model_validate(await handle.result())
    assert bench.fakes.calls == PHASES
    assert (await handle.query("progress"))["incarnation"] == 4
    assert result.incarnation == 4
    assert result.snapshot == "snapshot_000002"
    assert result.finished_rollouts == 3
    assert [(r.rollout_id, r.restarted_because) for r in result.continued] == [
        ("p0_g0", None),
        ("p0_g1", "restart_only: shell"),
    ]


@pytest.mark.parametrize(
    "phase", ["load_data_plane", "restore_checkpoint", "start_controller", "discard_continuations"]
)
async def test_a_snapshot_that_does_not_load_gives_way_to_the_next_older(
    bench: Bench, phase: str
) -> None:
    bench.fakes.fail[phase] = [fatal()]
    result = RestoreResult.model_validate(
        await (await bench.start("RestoreSnapshot", JOB)).result()
    )
    assert result.snapshot == "snapshot_000001"
    assert result.skipped == ["snapshot_000002: digest_mismatch: gym/counter/sessions.jsonl"]
    tried = bench.fakes.calls
    assert tried.count("claim_job") == 1
    assert tried.index("drop_restored") == tried.index(phase) + 1
    assert tried[tried.index("drop_restored") + 1] == "discover_capabilities"


async def test_each_try_draws_a_new_restore_id(bench: Bench) -> None:
    bench.fakes.fail["restore_checkpoint"] = [fatal()]
    handle = await bench.start("RestoreSnapshot", JOB)
    result = RestoreResult.model_validate(await handle.result())
    assert bench.fakes.requests["drop_restored"].restore_id != result.restore_id


async def test_strict_fails_instead_of_taking_an_older_one(bench: Bench) -> None:
    bench.fakes.fail["restore_checkpoint"] = [fatal()]
    given = RestoreInput(job_id="demo", strict=True)
    cause = await failure_of(await bench.start("RestoreSnapshot", given))
    assert isinstance(cause, ApplicationError) and cause.type == "digest_mismatch"
    assert bench.fakes.calls[-1] == "drop_restored"


async def test_giving_up_leaves_nothing_behind_and_names_the_last_reason(bench: Bench) -> None:
    bench.fakes.fail["restore_checkpoint"] = [fatal(), fatal()]
    cause = await failure_of(await bench.start("RestoreSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "no_snapshot"
    assert bench.fakes.calls.count("drop_restored") == 2


async def test_a_reason_that_is_not_about_the_snapshot_never_takes_an_older_one(
    bench: Bench,
) -> None:
    """An older one would cost turns that the intact newer one holds."""
    bench.fakes.fail["restore_checkpoint"] = [fatal("actor_lost")]
    cause = await failure_of(await bench.start("RestoreSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "actor_lost"
    assert bench.fakes.calls[-1] == "drop_restored"


async def test_a_drop_that_fails_does_not_hide_why(bench: Bench) -> None:
    bench.fakes.fail["restore_checkpoint"] = [fatal()]
    bench.fakes.fail["drop_restored"] = [fatal("checkpoint_conflict")]
    cause = await failure_of(await bench.start("RestoreSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "digest_mismatch"


async def test_a_cancel_is_kept_though_the_activity_that_runs_still_succeeds(bench: Bench) -> None:
    release = bench.fakes.deaf_until["start_controller"] = asyncio.Event()
    handle = await bench.start("RestoreSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event("start_controller").wait(), 10)
    await handle.cancel()
    await asyncio.sleep(0.3)
    release.set()
    assert isinstance(await failure_of(handle), CancelledError)
    assert bench.fakes.calls[-1] == "drop_restored"


async def test_there_is_no_falling_back_after_the_first_resume(bench: Bench) -> None:
    bench.fakes.fail["resume_restored"] = [fatal("server_unreachable")]
    cause = await failure_of(await bench.start("RestoreSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "server_unreachable"
    assert "drop_restored" not in bench.fakes.calls


async def test_a_cancel_before_the_first_resume_leaves_nothing_behind(bench: Bench) -> None:
    bench.fakes.hang.add("restore_checkpoint")
    handle = await bench.start("RestoreSnapshot", JOB)
    await asyncio.wait_for(bench.fakes.started_event("restore_checkpoint").wait(), 10)
    await handle.cancel()
    assert isinstance(await failure_of(handle), CancelledError)
    assert bench.fakes.calls[-1] == "drop_restored"


async def test_a_superseded_claim_touches_nothing(bench: Bench) -> None:
    bench.fakes.fail["claim_job"] = [fatal("superseded")]
    cause = await failure_of(await bench.start("RestoreSnapshot", JOB))
    assert isinstance(cause, ApplicationError) and cause.type == "superseded"
    assert bench.fakes.calls == ["claim_job"]


async def test_bad_input_names_the_field(bench: Bench) -> None:
    cause = await failure_of(
        await bench.start("RestoreSnapshot", {"job_id": "demo", "snapshto": "SECRET-VALUE"})
    )
    assert isinstance(cause, ApplicationError) and cause.type == "invalid_request"
    assert "snapshto" in cause.message
    assert "SECRET-VALUE" not in cause.message
