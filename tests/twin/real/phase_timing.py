"""Brings a crash into a phase of a real save or restore, and finds out which one it hit.

A worker is held at the phase's beginning or end (`tests.faults.held_worker`); a crash inside
comes a share of the phase's usual length after its beginning was let go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from activities.contract import PhaseReport
from tests.real.live import Live
from tests.twin.real.crash_plan import Place, Point

REACH_S = 90.0
_USUAL_S = {
    "prepare_checkpoint": 0.4,
    "claim_job": 1.0,
    "discover_capabilities": 3.0,
    "load_data_plane": 5.0,
    "start_controller": 2.0,
}
"""Assumed until measured; 0.1 s for other phases."""
_POLL_S = 0.02


class PhaseTiming:
    """Measured durations of phases, and the holds made from them, for one stack."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._usual_s = dict(_USUAL_S)

    def measured(self, phases: list[PhaseReport]) -> None:
        """Keep the durations of a save's or restore's phases."""
        self._usual_s |= {phase.phase: phase.ms / 1000 for phase in phases}

    @asynccontextmanager
    async def held(self, point: Point) -> AsyncIterator[_Hold]:
        """Ask for the hold that a point needs, before its workflow is started."""
        end = Place.AFTER if point.place is Place.AFTER else Place.BEFORE
        with self._live.hold(f"{point.phase}.{end.value}") as reached:
            share_s = point.share * self._usual_s.get(point.phase, 0.1)
            yield _Hold(reached, share_s if point.place is Place.INSIDE else None)


class _Hold:
    """One requested hold."""

    def __init__(self, reached: Any, inside_s: float | None) -> None:
        self._reached = reached
        self._inside_s = inside_s

    async def is_reached_by(self, handle: WorkflowHandle[Any, Any]) -> bool:
        """Return True when the crash is due; False if the workflow ended before its phase came.

        Raises:
            AssertionError: Neither within `REACH_S`.
        """
        end, looked = time.monotonic() + REACH_S, time.monotonic()
        while not (self._reached.exists() and self._reached.read_text()):
            assert time.monotonic() < end, f"waited {REACH_S:.0f} s for {self._reached.stem}"
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                if (await handle.describe()).status != WorkflowExecutionStatus.RUNNING:
                    return False
            await asyncio.sleep(_POLL_S)
        if self._inside_s is not None:
            self._reached.unlink()
            await asyncio.sleep(self._inside_s)
        return True


async def phase_at(handle: WorkflowHandle[Any, Any], at: datetime) -> tuple[str, bool]:
    """Find the activity that a crash hit, from the history.

    Returns:
        The one that was last scheduled, and whether it was still under way.
    """
    phase, running, numbers = "before the first", False, dict[int, str]()
    history = await handle.fetch_history()
    for event in history.events:
        if event.event_time.ToDatetime(UTC) > at:
            break
        if event.HasField("activity_task_scheduled_event_attributes"):
            phase = event.activity_task_scheduled_event_attributes.activity_type.name
            numbers[event.event_id], running = phase, True
        elif event.HasField("activity_task_completed_event_attributes"):
            completed = event.activity_task_completed_event_attributes.scheduled_event_id
            running = running and numbers[completed] != phase
    return phase, running
