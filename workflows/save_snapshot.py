"""`SaveSnapshot`: the table of the design's section 4, one activity a row.

Guarantees: a save that does not publish leaves the job running and no folder; from the start of
`publish_snapshot` the disk alone says if the snapshot is published; once published it stays so.
A terminated workflow, or one without a worker or Temporal, does not end its pause: the leases of
the controller and of the servers do.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
)

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from pydantic import BaseModel

    from activities.contract import (
        Progress,
        PruneInput,
        PruneResult,
        SaveInput,
        SaveOutcome,
        SaveResult,
        save,
    )

from workflows.failures import parsed, reason_of, shielded, stop_if_cancelled
from workflows.journal import BYTES, JOB, OUTCOME, PARKED, PAUSE_MS, SNAPSHOT, Journal
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
BEGIN_TIMEOUT = timedelta(seconds=30)
"""The controller answers at once; the rest is for a worker that dies meanwhile."""
UNPUBLISH_TIMEOUT = timedelta(seconds=60)
ASK_DISK_TIMEOUT = timedelta(days=1)
"""The rollouts go on meanwhile; the result must agree with the disk."""
RESUME_TIMEOUT = timedelta(seconds=60)


@workflow.defn(name="SaveSnapshot")
class SaveSnapshot:
    """Saves one snapshot of a running job."""

    def __init__(self) -> None:
        self._journal = Journal(PHASES)

    @workflow.query
    def progress(self) -> Progress:
        """The phase that runs, and those that are over."""
        return Progress(phase=self._journal.current, done=self._journal.done)

    @workflow.run
    async def run(self, given: Any = None) -> SaveResult:
        """Save once. `given` is a `SaveInput` as a JSON object."""
        self._save = parsed(SaveInput, given)
        self._id = str(workflow.uuid4())
        self._journal.note(JOB.value_set(self._save.job_id))

        begun = self._begun = await self._begin_checkpoint()
        if not begun.agreed:
            return self._refused(begun)
        settings, folder, publishing = begun.settings, begun.folder, False
        try:
            preparing = save.CheckpointRequest(**self._in_pause(settings.prepare_timeout_s))
            await self._row("close_admission", preparing, save.CloseResult)
            prepared = await self._row("prepare_checkpoint", preparing, save.PrepareResult)
            self._journal.note(PARKED.value_set(prepared.parked))
            committing = save.FolderRequest(
                **self._in_pause(settings.commit_timeout_s), folder=folder
            )
            committed = await self._row("commit_checkpoint", committing, save.CommitResult)
            cutting = save.FolderRequest(**self._in_pause(settings.cut_timeout_s), folder=folder)
            cut = await self._row("cut_rl_state", cutting, save.CutResult)
            stop_if_cancelled()
            publishing = True
            published = await shielded(self._publish_snapshot(committed, cut))
        except (ActivityError, asyncio.CancelledError) as error:
            phase = self._journal.current or "the save"
            undone = await shielded(self._undo(begun.incarnation, disk_decides=publishing))
            if not undone.published:
                raise self._failed(error, phase) from None
            published = save.PublishResult(**undone.model_dump(exclude={"trashed"}))

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

    async def _begin_checkpoint(self) -> save.BeginResult:
        request = save.BeginRequest(**self._key(), name=self._save.name)
        try:
            return await self._journal.run(
                "begin_checkpoint", request, save.BeginResult, within(BEGIN_TIMEOUT)
            )
        except (ActivityError, asyncio.CancelledError) as error:
            # The controller may have begun, and its answer is lost; the id alone undoes that.
            await shielded(self._undo(None, disk_decides=False))
            raise self._failed(error, "begin_checkpoint") from None

    async def _publish_snapshot(
        self, committed: save.CommitResult, cut: save.CutResult
    ) -> save.PublishResult:
        request = save.PublishRequest(
            **self._in_pause(self._begun.settings.publish_timeout_s),
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
        result = await self._journal.run(
            "publish_snapshot", request, save.PublishResult, until(request.deadline)
        )
        self._journal.note(BYTES.value_set(result.bytes))
        return result

    async def _resume_after_publish(self, snapshot: str | None) -> save.ResumeResult:
        self._journal.note(
            OUTCOME.value_set("published"), SNAPSHOT.value_set(self._save.name or snapshot or "")
        )
        try:
            return await self._resume_checkpoint(self._begun.incarnation, snapshot)
        except ActivityError as error:
            # A publish is final; what this could not reach opens when its lease ends.
            return save.ResumeResult(servers=[], pause_s=None, note=str(reason_of(error)))

    async def _resume_checkpoint(
        self, incarnation: int | None, published: str | None
    ) -> save.ResumeResult:
        request = save.ResumeRequest(**self._key(), incarnation=incarnation, published=published)
        result = await self._journal.run(
            "resume_checkpoint", request, save.ResumeResult, within(RESUME_TIMEOUT)
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
            # The snapshot is published; old ones cost space until the next save prunes again.
            workflow.logger.warning("prune failed", extra={"error": type(error.cause).__name__})
            return []
        return result.removed

    # --- refusals and compensation ------------------------------------------------------------

    def _refused(self, begun: save.BeginResult) -> SaveResult:
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

    async def _undo(self, incarnation: int | None, *, disk_decides: bool) -> save.UnpublishResult:
        """Compensate, unless the disk says that the publish had won.

        Args:
            incarnation: The controller's; None if its answer was lost.
            disk_decides: The publish was begun: the disk is asked until it answers.
        """
        try:
            answer = await self._unpublish_snapshot(UNPUBLISH_TIMEOUT)
        except ActivityError as error:
            # Opening comes first: the next save sweeps the folder, and the job must not wait.
            workflow.logger.warning("unpublish failed", extra={"error": str(reason_of(error))})
            answer = save.UnpublishResult(published=False)
            if disk_decides:
                await self._open_again(incarnation)
                answer = await self._unpublish_snapshot(ASK_DISK_TIMEOUT)
        if not answer.published:
            await self._open_again(incarnation)
        return answer

    async def _open_again(self, incarnation: int | None) -> None:
        try:
            await self._resume_checkpoint(incarnation, None)
        except ActivityError as error:
            # Every participant opens by itself when its lease ends.
            workflow.logger.warning("resume failed", extra={"error": str(reason_of(error))})

    async def _unpublish_snapshot(self, timeout: timedelta) -> save.UnpublishResult:
        request = save.CheckpointKey(**self._key())
        return await self._journal.run(
            "unpublish_snapshot", request, save.UnpublishResult, within(timeout)
        )

    def _failed(self, error: BaseException, phase: str) -> FailureError:
        return self._journal.failed(error, phase, if_cancelled="Cancelled; nothing was published.")

    # --- one request --------------------------------------------------------------------------

    def _key(self) -> dict[str, Any]:
        return {"job_id": self._save.job_id, "checkpoint_id": self._id}

    def _in_pause(self, timeout_s: float) -> dict[str, Any]:
        """The fields that every request between `begin_checkpoint` and the publish carries."""
        return {
            **self._key(),
            "incarnation": self._begun.incarnation,
            "lease_s": self._begun.settings.lease_s,
            "deadline": workflow.now() + timedelta(seconds=timeout_s),
        }

    async def _row(
        self, phase: str, request: save.CheckpointRequest, result_type: type[Result]
    ) -> Result:
        stop_if_cancelled()
        return await self._journal.run(phase, request, result_type, until(request.deadline))
