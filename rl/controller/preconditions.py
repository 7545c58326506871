"""Conditions for a save, checked before anything pauses.

Guarantees: a refused save has changed nothing. Checked is what would make the save fail later: the
job's phase, another save, servers that are not open, TransferQueue, the disk.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gym.protocol import Phase, TurnpointError
from rl.controller.collaborators import Collaborators
from rl.controller.job_state import JobState
from rl.data_plane.names import STAGING
from rl.messages import BeginAnswer, JobPhase

_STATUS_TIMEOUT_S = 5.0
_LEAST_FREE_BYTES = 16 << 20
_TIMES_THE_NEWEST = 2
"""A snapshot is written beside the newest one and may have grown since."""


class SaveRefused(Exception):
    """A condition is not met.

    Args:
        refusal: Stable code, one of those of `BeginAnswer`.
        reason: For a person.
        details: For a machine.
    """

    def __init__(self, refusal: str, reason: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self._fields = {"refusal": refusal, "reason": reason, "details": details or {}}

    def answer(self, job: JobState) -> BeginAnswer:
        """The controller's answer to `begin`."""
        return BeginAnswer(
            agreed=False, incarnation=job.incarnation, settings=job.config.save, **self._fields
        )


def require_ready(job: JobState, running: str | None) -> None:
    """Check the controller's own state.

    Args:
        job: The job.
        running: Id of the save that runs, if any.

    Raises:
        SaveRefused: Nothing is sent yet, everything is over, or another save runs.
    """
    if job.phase in (JobPhase.STARTING, JobPhase.RESTORED):
        raise SaveRefused("restore_not_finished", "the pumps are not started yet")
    if job.phase is JobPhase.FINISHED:
        raise SaveRefused("job_finished", "every rollout is over")
    if running is not None:
        raise SaveRefused(
            "checkpoint_running",
            "another save (scheduled or manual) is running; wait for it and try again",
            {"checkpoint_id": running},
        )
    if job.storing.running:
        raise SaveRefused("data_plane_busy", "TransferQueue's last save has not returned")


async def require_changed(job: JobState, others: Collaborators) -> None:
    """Raise `SaveRefused` if nothing has changed since the last snapshot of this controller."""
    last = job.last_snapshot
    if last.mark is None:
        return
    try:
        async with asyncio.timeout(job.config.data_plane_timeout_s):
            staged = await others.data_plane.keys(STAGING)
    except TimeoutError:
        raise SaveRefused("data_plane_busy", "TransferQueue does not answer") from None
    if job.mark(staged) == last.mark:
        raise SaveRefused("unchanged", f"nothing has changed since {last.name}")


async def require_open_servers(job: JobState, others: Collaborators) -> None:
    """Raise `SaveRefused` if a server is silent, another process than joined, or not open."""
    try:
        async with asyncio.timeout(_STATUS_TIMEOUT_S):
            servers = await others.gym.status()
    except (TurnpointError, TimeoutError) as error:
        why = error.code if isinstance(error, TurnpointError) else "no answer"
        name = getattr(error, "participant", None) or "a server"
        raise SaveRefused("server_unfit", f"{name}: {why}") from None
    silent = {s.name for s in job.servers if s.instance_id} - {s.server for s in servers}
    if silent:
        raise SaveRefused(
            "server_unfit",
            f"no answer from {', '.join(sorted(silent))} as the process that joined: look at "
            "`turnpoint status` and `turnpoint logs NAME`; one that has restarted has lost its "
            "state, and `turnpoint restore --replace` brings the job back",
        )
    if closed := sorted(s.server for s in servers if s.phase is not Phase.OPEN):
        raise SaveRefused("server_unfit", f"not open: {', '.join(closed)}")


async def require_space(job: JobState, others: Collaborators) -> None:
    """Check that another snapshot fits on the disk, after making room for it.

    Raises:
        SaveRefused: Too little is free.
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
        raise SaveRefused(
            "no_space",
            f"{free} bytes are free below the snapshot root, {need} are needed: free some, or "
            "lower keep_latest_k",
        )
