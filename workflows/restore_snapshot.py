"""`RestoreSnapshot`: the table of the design's section 5, one activity a row.

Guarantees: nothing resumes until everything is restored (invariant 10); a snapshot that does
not load leaves nothing behind before the next older one is tried; falling back ends with the
first `resume`. A restore has no lease: the servers of an abandoned one stay closed until the next.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():  # pure models and names: nothing to re-import
    from pydantic import BaseModel

    from activities.contract import ContinuedRollout, Progress, RestoreInput, RestoreResult, restore

from workflows.failures import parsed, reason_of, shielded, stop_if_cancelled, was_cancelled
from workflows.journal import BYTES, JOB, OUTCOME, SNAPSHOT, Journal
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
CLAIM_TIMEOUT = timedelta(minutes=2)
DISCOVER_TIMEOUT = timedelta(minutes=10)
"""Beyond `restore_wait_s`, after which the activity itself fails and names the missing servers."""
LOAD_TIMEOUT = timedelta(minutes=30)
RESUME_TIMEOUT = timedelta(minutes=2)
ABOUT_THE_SNAPSHOT = {
    "chain_broken",
    "digest_mismatch",
    "inventory_mismatch",
    "snapshot_damaged",
    "topology_mismatch",
    "unsupported_schema",
}
"""Reasons for which an older snapshot may be better. After any other (a lost actor, a silent
server) an older one would cost turns that the intact snapshot holds."""


@workflow.defn(name="RestoreSnapshot")
class RestoreSnapshot:
    """Brings a job back from a snapshot, under a new incarnation."""

    def __init__(self) -> None:
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
        self._restore = parsed(RestoreInput, given)
        self._journal.note(JOB.value_set(self._restore.job_id))
        try:
            return await self._run()
        except (ActivityError, asyncio.CancelledError) as error:
            raise self._journal.failed(
                error,
                self._journal.current or "the restore",
                if_cancelled="Cancelled; what is closed stays so until the next restore.",
            ) from None

    async def _run(self) -> RestoreResult:
        self._claimed = await self._claim_job()
        self._incarnation = self._claimed.incarnation
        stop_if_cancelled()
        unusable: list[str] = []
        while True:
            self._id = str(workflow.uuid4())
            found = await self._discover_capabilities()
            selected = await self._select_snapshot(found, unusable)
            try:
                loading = restore.LoadRequest(
                    **self._key(),
                    snapshot=selected.snapshot,
                    servers=found.servers,
                    files=selected.files,
                )
                await self._row("load_data_plane", loading, restore.LoadResult)
                stop_if_cancelled()
                parts = restore.PartsRequest(
                    **self._key(),
                    snapshot=selected.snapshot,
                    source_checkpoint_id=selected.source_checkpoint_id,
                    files=selected.files,
                )
                await self._row("restore_checkpoint", parts, restore.ServersResult)
                stop_if_cancelled()
                started = await self._row("start_controller", loading, restore.StartResult)
                stop_if_cancelled()
                discarding = restore.RestoreStep(**self._key())
                discarded = await self._row(
                    "discard_continuations", discarding, restore.DiscardResult
                )
                stop_if_cancelled()
                break
            except (ActivityError, asyncio.CancelledError) as error:
                phase, reason = self._journal.current, reason_of(error)
                dropped = await shielded(self._drop_restored(found))
                about_it = reason.type in ABOUT_THE_SNAPSHOT
                if self._restore.strict or was_cancelled(error) or not about_it or not dropped:
                    self._journal.current = phase
                    raise
                unusable.append(f"{selected.snapshot}: {reason.type}: {reason.message}")
        resuming = restore.OpenRequest(**self._key(), snapshot=selected.snapshot)
        await self._row("resume_restored", resuming, restore.ServersResult, RESUME_TIMEOUT)
        was_running = self._claimed.schedule_was_running
        starting = restore.PumpsRequest(**self._key(), schedule_was_running=was_running)
        await self._row("start_pumps", starting, restore.PumpsResult, RESUME_TIMEOUT)

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

    async def _claim_job(self) -> restore.ClaimResult:
        info = workflow.info()
        request = restore.ClaimRequest(
            job_id=self._restore.job_id,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            replace=self._restore.replace,
            snapshot=self._restore.snapshot,
        )
        return await self._row("claim_job", request, restore.ClaimResult, CLAIM_TIMEOUT)

    async def _discover_capabilities(self) -> restore.DiscoverResult:
        timeout = DISCOVER_TIMEOUT + timedelta(seconds=self._claimed.restore_wait_s)
        request = restore.RestoreStep(**self._key())
        return await self._row("discover_capabilities", request, restore.DiscoverResult, timeout)

    async def _select_snapshot(
        self, found: restore.DiscoverResult, unusable: list[str]
    ) -> restore.SelectResult:
        request = restore.SelectRequest(
            **self._key(),
            snapshot=self._restore.snapshot,
            strict=self._restore.strict,
            servers=found.servers,
            excluded=[entry.partition(":")[0] for entry in unusable],
            reasons=unusable,
        )
        result = await self._row("select_snapshot", request, restore.SelectResult)
        self._journal.note(SNAPSHOT.value_set(result.snapshot), BYTES.value_set(result.bytes))
        return result

    # --- compensation -------------------------------------------------------------------------

    async def _drop_restored(self, found: restore.DiscoverResult) -> bool:
        """Leave nothing of this try: servers reset, the actors of this incarnation killed.

        Returns:
            True if nothing is left, so that another try may begin.
        """
        request = restore.DropRequest(**self._key(), servers=found.servers)
        try:
            await self._row("drop_restored", request, restore.ServersResult)
        except ActivityError as error:
            # The restore fails with its own reason; the next one takes everything back.
            workflow.logger.warning("drop failed", extra={"error": str(reason_of(error))})
            return False
        return True

    # --- one request --------------------------------------------------------------------------

    def _key(self) -> dict[str, Any]:
        return {
            "job_id": self._restore.job_id,
            "incarnation": self._claimed.incarnation,
            "restore_id": self._id,
        }

    async def _row(
        self,
        phase: str,
        request: BaseModel,
        result_type: type[Result],
        timeout: timedelta = LOAD_TIMEOUT,
    ) -> Result:
        return await self._journal.run(phase, request, result_type, within(timeout))


def _with_restarts(
    unfinished: list[ContinuedRollout], restarted: list[ContinuedRollout]
) -> list[ContinuedRollout]:
    """Every unfinished rollout once; the discarded ones with their reason."""
    reasons = {rollout.rollout_id: rollout for rollout in restarted}
    return [reasons.get(rollout.rollout_id, rollout) for rollout in unfinished]
