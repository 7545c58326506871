"""The save that a SIGTERM to `turnpoint run` asks for: a preemption notice.

Guarantees: it returns within the grace period and reports the outcome. A save that has been
started and has not ended by then goes on as a workflow, for as long as the machine does.
"""

from __future__ import annotations

import asyncio

from activities.contract import Progress, SaveInput, SaveOutcome
from gym.protocol import TurnpointError
from rl.snapshots.folder import SnapshotFolder
from workers.config.settings import Settings
from workers.errors import WorkerRoomError
from workers.job import commands as job_runs
from workers.job.workflows import OnProgress
from workers.supervisor.event_log import LastSave

PUBLISH = "publish_snapshot"
_PAUSE_S = 0.3
_PASSING = {"checkpoint_running", "data_plane_busy", "weights_syncing", "restore_not_finished"}
"""Codes of refusals that pass by themselves, as while another save runs."""


async def last_save(settings: Settings, grace_s: float, on_progress: OnProgress) -> LastSave:
    """Save once more, within `grace_s` seconds; a save that fails raises nothing here."""
    if grace_s <= 0:
        return LastSave(outcome="none", reason="no time was granted for it (--grace-s)")
    under_way, published = asyncio.Event(), asyncio.Event()

    def note_publication(progress: Progress) -> None:
        on_progress(progress)
        if any(phase.phase == PUBLISH for phase in progress.done):
            published.set()

    try:
        async with asyncio.timeout(grace_s):
            return await _save(settings, note_publication, under_way)
    except TimeoutError:
        newest = _newest(settings)
        if published.is_set():  # it only prunes, or opens again
            return LastSave(outcome="published", snapshot=newest)
        if not under_way.is_set():
            reason = f"no save could be started within {grace_s:g} s"
            return LastSave(outcome="none", snapshot=newest, reason=reason)
        reason = f"it has not ended within {grace_s:g} s; it goes on in Temporal"
        return LastSave(outcome="not_finished", snapshot=newest, reason=reason)


async def _save(settings: Settings, on_progress: OnProgress, under_way: asyncio.Event) -> LastSave:
    given = SaveInput(job_id=settings.job_id)
    while True:
        try:
            result = await job_runs.save(settings, given, on_progress, lambda _: under_way.set())
        except (WorkerRoomError, TurnpointError) as error:
            code = error.reason if isinstance(error, job_runs.NotNow) else error.code
            if code in _PASSING:
                under_way.clear()
                await asyncio.sleep(_PAUSE_S)
                continue
            newest = _newest(settings)
            if code == "unchanged":
                reason = "nothing has changed since the newest snapshot"
                return LastSave(outcome="unchanged", snapshot=newest, reason=reason)
            return LastSave(outcome="failed", snapshot=newest, reason=str(error))
        if result.outcome is SaveOutcome.PUBLISHED:
            return LastSave(outcome="published", snapshot=result.snapshot)
        return LastSave(outcome="none", snapshot=_newest(settings), reason=result.reason)


def _newest(settings: Settings) -> str | None:
    snapshots = SnapshotFolder(settings.job_config()).snapshots()
    return snapshots[0] if snapshots else None
