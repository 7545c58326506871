"""`RestoreSnapshot`: the table of the design's section 5, one activity a row.

Guarantees: nothing resumes until everything is restored (invariant 10); a snapshot that does
not load leaves nothing behind before the next older one is tried; falling back ends with the
first `resume`. There is no lease on a restore: one that nobody drives stays closed.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError, FailureError

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from pydantic import BaseModel

    from activities.contract import (
        ClaimRequest,
        ClaimResult,
        ContinuedRollout,
        DiscardContinuationsRequest,
        DiscardContinuationsResult,
        DiscoverRequest,
        DiscoverResult,
        DropRestoredRequest,
        DropRestoredResult,
        LoadDataPlaneRequest,
        LoadDataPlaneResult,
        PhaseReport,
        Progress,
        RestoreCheckpointRequest,
        RestoreCheckpointResult,
        RestoreInput,
        RestoreResult,
        ResumeRestoredRequest,
        ResumeRestoredResult,
        SelectRequest,
        SelectResult,
        StartControllerRequest,
        StartControllerResult,
        StartPumpsRequest,
        StartPumpsResult,
    )

from workflows.journal import (
    BYTES,
    JOB,
    OUTCOME,
    SNAPSHOT,
    Journal,
    parsed,
    reason_of,
    shielded,
    stop_if_cancelled,
    was_cancelled,
)
from workflows.options import within

Result = TypeVar("Result", bound=BaseModel)

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
CLAIM_LIMIT = timedelta(minutes=2)
DISCOVER_LIMIT = timedelta(minutes=10)
"""Beyond `restore_wait_s`, which the activity keeps itself and names who is missing."""
LOAD_LIMIT = timedelta(minutes=30)
RESUME_LIMIT = timedelta(minutes=2)
ABOUT_THE_SNAPSHOT = {
    "chain_broken",
    "digest_mismatch",
    "inventory_mismatch",
    "snapshot_damaged",
    "topology_mismatch",
    "unsupported_schema",
}
"""Reasons for which an older snapshot may be better. Any other (a lost actor, a silent server)
would cost turns that an intact snapshot holds."""


@workflow.defn(name="RestoreSnapshot")
class RestoreSnapshot:
    """Brings a job back from a snapshot, under a new incarnation."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self._journal = Journal(PHASES)
        self._incarnation: int | None = None

    @workflow.query
    def progress(self) -> Progress:
        """The phase that runs, those that are over, and the incarnation once it is claimed."""
        return Progress(
            phase=self._journal.current, done=self._journal.done, incarnation=self._incarnation
        )

    @workflow.run
    async def run(self, given: Any = None) -> RestoreResult:
        """Restore once. `given` is a `RestoreInput` as a JSON object."""
        restore = parsed(RestoreInput, given)
        self._restore = restore
        self._journal.note(JOB.value_set(restore.job_id))
        try:
            return await self._run()
        except (ActivityError, asyncio.CancelledError) as error:
            raise self._failed(error) from None

    async def _run(self) -> RestoreResult:
        self._claimed = await self._claim_job()
        self._incarnation = self._claimed.incarnation
        stop_if_cancelled()
        unusable: list[str] = []
        while True:
            self._id = str(workflow.uuid4())
            servers = await self._discover_capabilities()
            selected = await self._select_snapshot(servers, unusable)
            try:
                await self._load_data_plane(selected, servers)
                stop_if_cancelled()
                await self._restore_checkpoint(selected)
                stop_if_cancelled()
                started = await self._start_controller(selected, servers)
                stop_if_cancelled()
                discarded = await self._discard_continuations()
                stop_if_cancelled()
                break
            except (ActivityError, asyncio.CancelledError) as error:
                phase, reason = self._journal.current, reason_of(error)
                dropped = await shielded(self._drop_restored(servers))
                about_it = reason.type in ABOUT_THE_SNAPSHOT
                if self._restore.strict or was_cancelled(error) or not about_it or not dropped:
                    self._journal.current = phase
                    raise
                unusable.append(f"{selected.snapshot}: {reason.type}: {reason.message}")
        await self._resume_restored(selected)
        await self._start_pumps()

        self._journal.note(OUTCOME.value_set("restored"))
        self._journal.heading(
            f"Restored `{selected.snapshot}` as incarnation {self._claimed.incarnation}."
        )
        return RestoreResult(
            restore_id=self._id,
            incarnation=self._claimed.incarnation,
            snapshot=selected.snapshot,
            skipped=[*unusable, *(why for why in selected.skipped if why not in unusable)],
            finished_rollouts=started.finished,
            continued=_with_restarts(started.unfinished, discarded.restarted),
            phases=self._journal.done,
        )

    # --- the rows of the table ----------------------------------------------------------------

    async def _claim_job(self) -> ClaimResult:
        info = workflow.info()
        request = ClaimRequest(
            job_id=self._restore.job_id,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            replace=self._restore.replace,
            snapshot=self._restore.snapshot,
        )
        return await self._phase("claim_job", request, ClaimResult, CLAIM_LIMIT)

    async def _discover_capabilities(self) -> DiscoverResult:
        request = DiscoverRequest(**self._carried())
        limit = DISCOVER_LIMIT + timedelta(seconds=self._claimed.restore_wait_s)
        return await self._phase("discover_capabilities", request, DiscoverResult, limit)

    async def _select_snapshot(self, found: DiscoverResult, unusable: list[str]) -> SelectResult:
        request = SelectRequest(
            **self._carried(),
            snapshot=self._restore.snapshot,
            strict=self._restore.strict,
            servers=found.servers,
            excluded=[entry.partition(":")[0] for entry in unusable],
            reasons=unusable,
        )
        result = await self._phase("select_snapshot", request, SelectResult, LOAD_LIMIT)
        self._journal.note(SNAPSHOT.value_set(result.snapshot), BYTES.value_set(result.bytes))
        return result

    async def _load_data_plane(self, selected: SelectResult, found: DiscoverResult) -> None:
        request = LoadDataPlaneRequest(
            **self._carried(),
            snapshot=selected.snapshot,
            servers=found.servers,
            files=selected.files,
        )
        await self._phase("load_data_plane", request, LoadDataPlaneResult, LOAD_LIMIT)

    async def _restore_checkpoint(self, selected: SelectResult) -> None:
        request = RestoreCheckpointRequest(
            **self._carried(),
            snapshot=selected.snapshot,
            source_checkpoint_id=selected.source_checkpoint_id,
            files=selected.files,
        )
        await self._phase("restore_checkpoint", request, RestoreCheckpointResult, LOAD_LIMIT)

    async def _start_controller(
        self, selected: SelectResult, found: DiscoverResult
    ) -> StartControllerResult:
        request = StartControllerRequest(
            **self._carried(),
            snapshot=selected.snapshot,
            servers=found.servers,
            files=selected.files,
        )
        return await self._phase("start_controller", request, StartControllerResult, LOAD_LIMIT)

    async def _discard_continuations(self) -> DiscardContinuationsResult:
        request = DiscardContinuationsRequest(**self._carried())
        return await self._phase(
            "discard_continuations", request, DiscardContinuationsResult, LOAD_LIMIT
        )

    async def _resume_restored(self, selected: SelectResult) -> None:
        request = ResumeRestoredRequest(**self._carried(), snapshot=selected.snapshot)
        await self._phase("resume_restored", request, ResumeRestoredResult, RESUME_LIMIT)

    async def _start_pumps(self) -> None:
        request = StartPumpsRequest(
            **self._carried(), schedule_was_running=self._claimed.schedule_was_running
        )
        await self._phase("start_pumps", request, StartPumpsResult, RESUME_LIMIT)

    # --- what happens otherwise ---------------------------------------------------------------

    async def _drop_restored(self, found: DiscoverResult) -> bool:
        """Leave nothing of this try: servers reset, the actors of this incarnation killed.

        Returns:
            Whether nothing is left, so that another try may begin.
        """
        request = DropRestoredRequest(**self._carried(), servers=found.servers)
        try:
            await self._phase("drop_restored", request, DropRestoredResult, LOAD_LIMIT)
        except ActivityError as error:
            # The restore fails with its own reason; the next one takes everything back.
            workflow.logger.warning("drop failed", extra={"error": str(reason_of(error))})
            return False
        return True

    def _failed(self, error: BaseException) -> FailureError:
        phase = self._journal.current or "the restore"
        if was_cancelled(error):
            self._journal.note(OUTCOME.value_set("cancelled"))
            self._journal.heading("Cancelled; what is closed stays so until the next restore.")
            return CancelledError("cancelled")
        reason = reason_of(error)
        self._journal.note(OUTCOME.value_set("failed"))
        self._journal.heading(f"Failed in `{phase}`: {reason.type}: {reason.message}")
        return reason

    # --- one phase ----------------------------------------------------------------------------

    def _carried(self) -> dict[str, Any]:
        return {
            "job_id": self._restore.job_id,
            "incarnation": self._claimed.incarnation,
            "restore_id": self._id,
        }

    async def _phase(
        self, phase: str, request: BaseModel, result_type: type[Result], limit: timedelta
    ) -> Result:
        self._journal.enter(phase)
        result: Result = await workflow.execute_activity(
            phase, request, result_type=result_type, **within(limit)
        )
        self._journal.leave(
            PhaseReport(
                phase=phase,
                ms=getattr(result, "ms", 0.0),
                servers=[r for r in getattr(result, "servers", []) if hasattr(r, "ms")],
            )
        )
        return result


def _with_restarts(
    unfinished: list[ContinuedRollout], restarted: list[ContinuedRollout]
) -> list[ContinuedRollout]:
    """Every unfinished rollout once; the discarded ones with their reason."""
    reasons = {rollout.rollout_id: rollout for rollout in restarted}
    return [reasons.get(rollout.rollout_id, rollout) for rollout in unfinished]
