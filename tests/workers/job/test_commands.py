"""Commands on a job: the errors and refusals that their callers get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.contract import PhaseReport, Progress, SaveInput
from rl.config import Workload
from tests.workers.job.ended_workflow import Ended
from workers.cli.output import EXIT_FAILED, EXIT_REFUSED
from workers.config.settings import Settings, load_settings
from workers.errors import TemporalRefused, WorkerRoomError
from workers.job import commands as job_runs
from workers.job import ray_client as ray_side


async def test_a_job_that_began_is_no_untyped_error_for_its_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor adopts the job then. Break: workers/job/commands.py: let the RPCError rise."""

    async def begun(*_: Any, **__: Any) -> Any:
        return 2

    async def away(*_: Any) -> None:
        raise RPCError("secret", RPCStatusCode.UNAVAILABLE, b"")

    monkeypatch.setattr(ray_side, "start_fresh", begun)
    monkeypatch.setattr(job_runs, "connect", begun)
    monkeypatch.setattr(job_runs, "set_schedule", away)
    settings = load_settings(
        state_dir=tmp_path,
        servers=[{"name": "counter", "kind": "resource", "url": "http://127.0.0.1:1"}],
        policy_url="http://127.0.0.1:1/v1",
        generation_port=1,
    )
    workload = Workload(dataset=Path("/rows.jsonl"))
    with pytest.raises(TemporalRefused):
        await job_runs.begin(settings, workload, fresh=True, on_progress=lambda _: None)


@pytest.mark.parametrize(
    ("type", "done", "incarnation", "refused"),
    [
        ("unchanged", ["begin_checkpoint"], None, True),
        ("no_space", ["begin_checkpoint"], None, True),
        ("no_space", ["begin_checkpoint", "close_admission", "resume_checkpoint"], None, False),
        ("job_alive", [], None, True),
        ("server_unfit", ["claim_job"], 3, False),
        ("not_ready", ["begin_checkpoint"], None, False),
    ],
)
async def test_a_failure_is_a_refusal_only_if_nothing_had_been_done(
    monkeypatch: pytest.MonkeyPatch,
    type: str,
    done: list[str],
    incarnation: int | None,
    refused: bool,
) -> None:
    """Exit code 3 says that a job was left as it was. Break: workers/job/commands.py: use the type.

    A disk that gets full in the pause, or a restore that has ended the old job, was no refusal.
    """
    reports = [PhaseReport(phase=phase, ms=1) for phase in done]
    ended = Ended(
        ApplicationError("told", type=type),
        Progress(phase=None, done=reports, incarnation=incarnation),
    )

    async def started(*_: object) -> Ended:
        return ended

    monkeypatch.setattr(job_runs, "connect", started)
    monkeypatch.setattr(job_runs, "start", started)
    with pytest.raises(WorkerRoomError) as caught:
        await job_runs.save(Settings(), SaveInput(job_id="demo"), lambda _: None)
    assert caught.value.code == type
    assert caught.value.exit_code == (EXIT_REFUSED if refused else EXIT_FAILED)
