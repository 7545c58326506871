"""`SaveSnapshot`: the table of the design's section 4, one activity a row.

Guarantees: a save that does not publish leaves the job running and no folder; from the start of
`publish_snapshot` only the disk says whether it is published; once published it stays so.
It does not guarantee that a pause ends in time when nobody drives it any more (a terminated
workflow, no worker, no Temporal): the leases of controller and servers do.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
)

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from pydantic import BaseModel

    from activities.contract import (
        AskDiskRequest,
        BeginRequest,
        BeginResult,
        CloseAdmissionRequest,
        CloseAdmissionResult,
        CommitCheckpointRequest,
        CommitCheckpointResult,
        CutRequest,
        CutResult,
        PhaseReport,
        PrepareCheckpointRequest,
        PrepareCheckpointResult,
        Progress,
        PruneInput,
        PruneResult,
        PublishRequest,
        PublishResult,
        ResumeCheckpointRequest,
        ResumeCheckpointResult,
        SaveInput,
        SaveOutcome,
        SaveResult,
        UnpublishResult,
    )

from workflows.journal import (
    BYTES,
    JOB,
    OUTCOME,
    PARKED,
    PAUSE_MS,
    SNAPSHOT,
    Journal,
    parsed,
    reason_of,
    shielded,
    stop_if_cancelled,
    was_cancelled,
)
from workflows.options import until, within

Result = TypeVar("Result", bound=BaseModel)

PHASES = [
    "begin_checkpoint",
    "close_admission",
    "prepare_checkpoint",
    "commit_checkpoint",
    "cut_rl_state",
    "publish_snapshot",
    "resume_checkpoint",
]
BEGIN_LIMIT = timedelta(seconds=30)
"""The controller answers at once; this is for a worker that dies over it."""
UNPUBLISH_LIMIT = timedelta(seconds=60)
ASK_DISK_LIMIT = timedelta(days=1)
"""Rollouts go on meanwhile; a result must not say less than the disk."""
RESUME_LIMIT = timedelta(seconds=60)


@workflow.defn(name="SaveSnapshot")
class SaveSnapshot:
    """Saves one snapshot of a running job."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self._journal = Journal(PHASES)

    @workflow.query
    def progress(self) -> Progress:
        """The phase that runs, and those that are over."""
        return Progress(phase=self._journal.current, done=self._journal.done)

    @workflow.run
    async def run(self, given: Any = None) -> SaveResult:
        """Save once. `given` is a `SaveInput` as a JSON object."""
        save = parsed(SaveInput, given)
        self._save, self._id = save, str(workflow.uuid4())
        self._journal.note(JOB.value_set(save.job_id))

        begun = await self._begin()
        if not begun.agreed:
            return self._refused(begun)
        settings, self._begun = begun.settings, begun
        publishing = False
        try:
            stop_if_cancelled()
            stop_by = self._in(settings.prepare_timeout_s)
            await self._close_admission(stop_by)
            stop_if_cancelled()
            prepared = await self._prepare_checkpoint(stop_by)
            stop_if_cancelled()
            committed = await self._commit_checkpoint(self._in(settings.commit_timeout_s))
            stop_if_cancelled()
            cut = await self._cut_rl_state(self._in(settings.cut_timeout_s))
            stop_if_cancelled()
            publishing = True
            published = await shielded(
                self._publish_snapshot(committed, cut, self._in(settings.publish_timeout_s))
            )
        except (ActivityError, asyncio.CancelledError) as error:
            phase = self._journal.current
            undone = await shielded(self._undo(begun.incarnation, disk_decides=publishing))
            if not undone.published:
                raise self._failed(error, phase) from None
            published = PublishResult(**undone.model_dump(exclude={"trashed"}))

        resumed = await shielded(self._resume_after_publish(published.snapshot))
        pruned = await shielded(self._prune(settings.keep_latest_k))
        cancelled = workflow.cancellation_reason() is not None
        self._journal.heading(f"Published as `{published.snapshot}`.")
        return SaveResult(
            outcome=SaveOutcome.PUBLISHED,
            checkpoint_id=self._id,
            snapshot=published.snapshot,
            reason="cancelled too late: it was published" if cancelled else None,
            incarnation=begun.incarnation,
            parked_rollouts=prepared.parked,
            bytes=published.bytes,
            pause_s=resumed.pause_s,
            resumed=resumed.note is None,
            phases=self._journal.done,
            pruned=pruned,
        )

    # --- the rows of the table ----------------------------------------------------------------

    async def _begin(self) -> BeginResult:
        request = BeginRequest(
            job_id=self._save.job_id, checkpoint_id=self._id, name=self._save.name
        )
        try:
            return await self._phase("begin_checkpoint", request, BeginResult, within(BEGIN_LIMIT))
        except (ActivityError, asyncio.CancelledError) as error:
            # It may have begun without our hearing of it; the id alone undoes that.
            await shielded(self._undo(None, disk_decides=False))
            raise self._failed(error, "begin_checkpoint") from None

    async def _close_admission(self, deadline: datetime) -> CloseAdmissionResult:
        request = CloseAdmissionRequest(**self._carried(deadline))
        return await self._phase("close_admission", request, CloseAdmissionResult, until(deadline))

    async def _prepare_checkpoint(self, deadline: datetime) -> PrepareCheckpointResult:
        request = PrepareCheckpointRequest(**self._carried(deadline))
        result = await self._phase(
            "prepare_checkpoint", request, PrepareCheckpointResult, until(deadline)
        )
        self._journal.note(PARKED.value_set(result.parked))
        return result

    async def _commit_checkpoint(self, deadline: datetime) -> CommitCheckpointResult:
        request = CommitCheckpointRequest(**self._carried(deadline), folder=self._begun.folder)
        return await self._phase(
            "commit_checkpoint", request, CommitCheckpointResult, until(deadline)
        )

    async def _cut_rl_state(self, deadline: datetime) -> CutResult:
        request = CutRequest(**self._carried(deadline), folder=self._begun.folder)
        return await self._phase("cut_rl_state", request, CutResult, until(deadline))

    async def _publish_snapshot(
        self, committed: CommitCheckpointResult, cut: CutResult, deadline: datetime
    ) -> PublishResult:
        request = PublishRequest(
            **self._carried(deadline),
            folder=self._begun.folder,
            snapshot=self._begun.snapshot,
            name=self._save.name,
            files=[*committed.files, *cut.files],
            topology=cut.topology,
            counts={
                "continuations": committed.continuations,
                "unfinished": cut.unfinished,
                "finished": cut.finished,
                "rows_put": cut.rows_put,
            },
        )
        result = await self._phase("publish_snapshot", request, PublishResult, until(deadline))
        self._journal.note(BYTES.value_set(result.bytes))
        return result

    async def _resume(
        self, incarnation: int | None, published: str | None
    ) -> ResumeCheckpointResult:
        request = ResumeCheckpointRequest(
            job_id=self._save.job_id,
            checkpoint_id=self._id,
            incarnation=incarnation,
            published=published,
        )
        result = await self._phase(
            "resume_checkpoint", request, ResumeCheckpointResult, within(RESUME_LIMIT)
        )
        if result.pause_s is not None:
            self._journal.note(PAUSE_MS.value_set(round(result.pause_s * 1000)))
        return result

    async def _prune(self, keep_latest_k: int) -> list[str]:
        prune = PruneInput(
            job_id=self._save.job_id,
            keep_latest_k=keep_latest_k,
            incarnation=self._begun.incarnation,
        )
        try:
            result: PruneResult = await workflow.execute_child_workflow(
                "PruneSnapshots",
                prune,
                id=f"{self._save.job_id}/prune/{self._id}",
                result_type=PruneResult,
            )
        except ChildWorkflowError as error:
            # The snapshot is there; old ones that stay cost space, and the next save prunes again.
            workflow.logger.warning("prune failed", extra={"error": type(error.cause).__name__})
            return []
        return result.removed

    # --- what happens otherwise ---------------------------------------------------------------

    def _refused(self, begun: BeginResult) -> SaveResult:
        reason = f"{begun.refusal}: {begun.reason}"
        if self._save.trigger == "manual":
            self._journal.note(OUTCOME.value_set("refused"))
            self._journal.heading(f"Refused: {reason}")
            raise ApplicationError(
                begun.reason or "refused",
                *([begun.details] if begun.details else []),
                type=begun.refusal or "refused",
                non_retryable=True,
            )
        self._journal.note(OUTCOME.value_set("skipped"))
        self._journal.heading(f"Skipped: {reason}")
        return SaveResult(outcome=SaveOutcome.SKIPPED, checkpoint_id=self._id, reason=reason)

    async def _undo(self, incarnation: int | None, *, disk_decides: bool) -> UnpublishResult:
        """Compensate, unless the disk says that the publish had won.

        Args:
            incarnation: Of the controller, if its answer was heard.
            disk_decides: A publish was asked for: the disk is asked until it answers.
        """
        try:
            answer = await self._unpublish(UNPUBLISH_LIMIT)
        except ActivityError as error:
            # Whoever holds a lease opens by itself; opening now is worth more than the folder,
            # which the next save sweeps.
            workflow.logger.warning("unpublish failed", extra={"error": str(reason_of(error))})
            answer = UnpublishResult(published=False)
            if disk_decides:
                await self._open_again(incarnation)
                answer = await self._unpublish(ASK_DISK_LIMIT)
        if not answer.published:
            await self._open_again(incarnation)
        return answer

    async def _open_again(self, incarnation: int | None) -> None:
        try:
            await self._resume(incarnation, None)
        except ActivityError as error:
            # Every participant opens by itself when its lease ends.
            workflow.logger.warning("resume failed", extra={"error": str(reason_of(error))})

    async def _unpublish(self, limit: timedelta) -> UnpublishResult:
        request = AskDiskRequest(job_id=self._save.job_id, checkpoint_id=self._id)
        return await self._phase("unpublish_snapshot", request, UnpublishResult, within(limit))

    async def _resume_after_publish(self, snapshot: str | None) -> ResumeCheckpointResult:
        self._journal.note(
            OUTCOME.value_set("published"), SNAPSHOT.value_set(self._save.name or snapshot or "")
        )
        try:
            return await self._resume(self._begun.incarnation, snapshot)
        except ActivityError as error:
            # After a publish there is no way back; the leases open what this could not reach.
            return ResumeCheckpointResult(
                servers=[], pause_s=None, ms=0, note=str(reason_of(error))
            )

    def _failed(self, error: BaseException, phase: str | None) -> FailureError:
        if was_cancelled(error):
            self._journal.note(OUTCOME.value_set("cancelled"))
            self._journal.heading("Cancelled; nothing was published.")
            return CancelledError("cancelled")
        reason = reason_of(error)
        self._journal.note(OUTCOME.value_set("failed"))
        self._journal.heading(f"Failed in `{phase or 'the save'}`: {reason.type}: {reason.message}")
        return reason

    # --- one phase ----------------------------------------------------------------------------

    def _in(self, seconds: float) -> datetime:
        return workflow.now() + timedelta(seconds=seconds)

    def _carried(self, deadline: datetime) -> dict[str, Any]:
        return {
            "job_id": self._save.job_id,
            "checkpoint_id": self._id,
            "incarnation": self._begun.incarnation,
            "lease_s": self._begun.settings.lease_s,
            "deadline": deadline,
        }

    async def _phase(
        self, phase: str, request: BaseModel, result_type: type[Result], options: dict[str, Any]
    ) -> Result:
        self._journal.enter(phase)
        result: Result = await workflow.execute_activity(
            phase, request, result_type=result_type, **options
        )
        self._journal.leave(
            PhaseReport(
                phase=phase,
                ms=getattr(result, "ms", 0.0),
                servers=getattr(result, "servers", []),
            )
        )
        return result
