"""Reasons to refuse a save before anything pauses.

Guarantees: a refused save has changed nothing. Checked are the conditions that would make the save
fail later: the job's phase, another save, servers that are not open, TransferQueue, the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.protocol import Phase, TurnpointError
from rl.controller.collaborators import Collaborators
from rl.controller.job_state import JobState
from rl.data_plane.names import STAGING
from rl.messages import JobPhase

_STATUS_LIMIT_S = 5.0
_LEAST_FREE_BYTES = 16 << 20
_TIMES_THE_NEWEST = 2
"""A snapshot is written beside the newest one and may have grown since."""


@dataclass(frozen=True)
class Refusal:
    """Answer to a save that cannot begin: the fields of `BeginAnswer`."""

    refusal: str
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


def refused_at_once(job: JobState, running: str | None) -> Refusal | None:
    """Refuse by the controller's own state.

    Args:
        job: The job.
        running: Id of the save that holds the controller, if any.
    """
    if job.phase in (JobPhase.STARTING, JobPhase.RESTORED):
        return Refusal("restore_not_finished", "the pumps are not started yet")
    if job.phase is JobPhase.FINISHED:
        return Refusal("job_finished", "every rollout is over")
    if running is not None:
        return Refusal(
            "checkpoint_running",
            "another save (scheduled or manual) is running; wait for it and try again",
            {"checkpoint_id": running},
        )
    if job.storing.running:
        return Refusal("data_plane_busy", "TransferQueue's last save has not returned")
    return None


async def refused_as_unchanged(job: JobState, others: Collaborators) -> Refusal | None:
    """Refuse if nothing has changed since the last snapshot, or TransferQueue does not answer."""
    last = job.last_snapshot
    if last.mark is None:
        return None
    try:
        async with asyncio.timeout(job.config.data_plane_timeout_s):
            staged = await others.data_plane.keys(STAGING)
    except TimeoutError:
        return Refusal("data_plane_busy", "TransferQueue does not answer")
    if job.mark(staged) == last.mark:
        return Refusal("unchanged", f"nothing has changed since {last.name}")
    return None


async def refused_by_servers(job: JobState, others: Collaborators) -> Refusal | None:
    """Refuse if a server does not answer, is another process than joined, or is not open."""
    try:
        async with asyncio.timeout(_STATUS_LIMIT_S):
            servers = await others.gym.status()
    except (TurnpointError, TimeoutError) as error:
        why = error.code if isinstance(error, TurnpointError) else "no answer"
        name = getattr(error, "participant", None) or "a server"
        return Refusal("server_unfit", f"{name}: {why}")
    silent = {s.name for s in job.servers if s.instance_id} - {s.server for s in servers}
    if silent:
        return Refusal(
            "server_unfit",
            f"no answer from {', '.join(sorted(silent))} as the process that joined: look at "
            "`turnpoint status` and `turnpoint logs NAME`; one that has restarted has lost its "
            "state, and `turnpoint restore --replace` brings the job back",
        )
    if closed := sorted(s.server for s in servers if s.phase is not Phase.OPEN):
        return Refusal("server_unfit", f"not open: {', '.join(closed)}")
    return None


async def refused_for_space(job: JobState, others: Collaborators) -> Refusal | None:
    """Refuse if too little space is free for another snapshot, after making room for it.

    Raises:
        Superseded: A newer incarnation exists.
    """
    folder = others.folder
    newest = await asyncio.to_thread(folder.newest_bytes)
    need = max(_LEAST_FREE_BYTES, _TIMES_THE_NEWEST * newest)
    free = await asyncio.to_thread(folder.free_bytes)
    if free < need:
        # A save that found the disk full may have left its files there.
        await asyncio.to_thread(folder.make_room, job.incarnation)
        free = await asyncio.to_thread(folder.free_bytes)
    if free < need:
        return Refusal(
            "no_space",
            f"{free} bytes are free below the snapshot root, {need} are needed: free some, or "
            "lower keep_latest_k",
        )
    return None
