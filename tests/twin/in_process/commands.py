"""Start, save and restore of the in-process twin's job, as the command line does them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.contract import TASK_QUEUE, RestoreInput, SaveInput, SaveOutcome, SaveResult
from activities.contract.restore import (
    DiscardResult,
    PumpsResult,
    StartResult,
)
from gym.client import GymClient
from rl import job
from rl.config import JobConfig, Workload
from rl.data_plane.names import STAGING
from tests.twin.in_process.crash_points import RUNNING, START
from tests.twin.in_process.execution import Execution
from tests.twin.outcome import Outcome
from tests.twin.overtaken import is_overtaken

PASSING = ("unchanged", "job_finished", "checkpoint_running")
"""Reasons of refusals that are right; a save that a crash hit may still run."""


@dataclass
class Commands:
    """Commands for one job; each violation found is a sentence in `wrong`."""

    client: Client
    config: JobConfig
    gym: GymClient
    workload: Workload
    outcome: Outcome
    wrong: list[str] = field(default_factory=list)
    started_over: dict[str, str] = field(default_factory=dict)
    """Rollouts that the last restore started over, with the reason."""
    begun_at: Mapping[str, int] = field(default_factory=dict)
    """The run number of each rollout when this execution of the job began."""
    _to_send: int | None = None
    _last_restore: str | None = None
    """Workflow id of the newest restore: open in Temporal if a crash interrupted it."""

    async def start(self, execution: Execution) -> None:
        """Start the job at its first prompt."""
        self.begun_at = {}
        await execution.crash.enter(START)
        await job.start_fresh(self.config, self.workload, _owner(), self.gym)
        await execution.crash.enter(RUNNING)

    async def restore(self, execution: Execution) -> None:
        """Go on from the newest snapshot.

        Raises:
            AssertionError: It failed, and no older restore came first.
        """
        older, self._last_restore = self._last_restore, self._new_id("restore")
        given = RestoreInput(job_id=self.config.job_id)
        try:
            await self._run("RestoreSnapshot", self._last_restore, given)
        except WorkflowFailureError as error:
            if older is None or not is_overtaken(error.cause, older):
                raise AssertionError(f"a restore has failed: {_reason(error)}") from None
            await self.client.get_workflow_handle(older).result()
        self.outcome.restores += 1
        await execution.crash.enter(RUNNING)

    async def save(self, execution: Execution) -> None:
        """Run a save: it publishes, is refused, or is cancelled."""
        given = SaveInput(job_id=self.config.job_id, trigger="scheduled")
        try:
            result = SaveResult.model_validate(
                await self._run("SaveSnapshot", self._new_id("save"), given)
            )
        except WorkflowFailureError as error:
            if not isinstance(error.cause, CancelledError):
                self.wrong.append(f"a save has failed: {_reason(error)}")
        else:
            self._look_at(result)
        await execution.crash.enter(RUNNING)

    def _new_id(self, kind: str) -> str:
        return f"{self.config.job_id}/{kind}/{uuid.uuid4()}"

    async def _run(self, workflow: str, workflow_id: str, given: Any) -> Any:
        return await self.client.execute_workflow(
            workflow, given, id=workflow_id, task_queue=TASK_QUEUE
        )

    def _look_at(self, result: SaveResult) -> None:
        if result.outcome is SaveOutcome.PUBLISHED:
            self.outcome.saves += 1
            if not result.resumed:
                self.wrong.append("a save was published and did not resume")
        elif not (result.reason or "").startswith(PASSING):
            self.wrong.append(f"a save was refused: {result.reason}")

    # --- answers of activities, before the workflow gets them -------------------------------------

    def on_answer(self, execution: Execution, answer: Any) -> None:
        """Check the job in the middle of a restore."""
        match answer:
            case StartResult():
                self.begun_at, self._to_send = execution.runs(), len(answer.unfinished)
            case DiscardResult():
                self.started_over = {
                    one.rollout_id: one.restarted_because or "no reason" for one in answer.restarted
                }
                self._require_no_stale_rows(execution)
            case PumpsResult() if answer.sent_again != self._to_send:
                self.wrong.append(f"{self._to_send} unfinished, {answer.sent_again} sent again")

    def _require_no_stale_rows(self, execution: Execution) -> None:
        """Staging holds what the ledger owns: a stale row could be taken for a call's answer."""
        records = execution.running.job.ledger.values()
        owned = {key for record in records for key in record.staging_keys}
        if stale := len(set(execution.rows.rows[STAGING]) - owned):
            self.wrong.append(f"{stale} staging rows of no record after a restore")


def _owner() -> dict[str, str]:
    return {"run_id": uuid.uuid4().hex}


def _reason(error: WorkflowFailureError) -> str:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.type}: {cause.message}"
    return type(cause).__name__
