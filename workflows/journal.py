"""An operator's view of a workflow: the details table, the search attributes, the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import CancelledError, FailureError

with workflow.unsafe.imports_passed_through():  # pure pydantic: costs 6 to 57 ms a run otherwise
    from pydantic import BaseModel

    from activities.contract import JOB_ATTRIBUTE, PhaseReport, ServerReport, Timed

from workflows.failures import reason_of, was_cancelled

JOB = SearchAttributeKey.for_keyword(JOB_ATTRIBUTE)
SNAPSHOT = SearchAttributeKey.for_keyword("TurnpointSnapshot")
OUTCOME = SearchAttributeKey.for_keyword("TurnpointOutcome")
PAUSE_MS = SearchAttributeKey.for_int("TurnpointPauseMs")
PARKED = SearchAttributeKey.for_int("TurnpointParkedRollouts")
BYTES = SearchAttributeKey.for_int("TurnpointBytes")
SEARCH_ATTRIBUTES: Sequence[SearchAttributeKey[Any]] = (
    JOB,
    SNAPSHOT,
    OUTCOME,
    PAUSE_MS,
    PARKED,
    BYTES,
)

Result = TypeVar("Result", bound=BaseModel)


class Journal:
    """The phases of one workflow as they go by.

    Args:
        phases: Names of the phases that the table shows from the start.
    """

    def __init__(self, phases: Sequence[str]) -> None:
        self.current: str | None = None
        """The phase that runs, or that has failed."""
        self.done: list[PhaseReport] = []
        self._planned = list(phases)
        self._heading = ""

    async def run(
        self, phase: str, request: BaseModel, result_type: type[Result], options: dict[str, Any]
    ) -> Result:
        """Run the activity that is the phase, and add its report.

        Args:
            phase: Name of the phase and of its activity.
            request: The activity's request.
            result_type: Model of its result.
            options: From `workflows.options`.
        """
        self.current, started = phase, workflow.now()
        self._show()
        result: Result = await workflow.execute_activity(
            phase, request, result_type=result_type, **options
        )
        elapsed_ms = (workflow.now() - started).total_seconds() * 1000
        reports = [s for s in getattr(result, "servers", []) if isinstance(s, ServerReport)]
        ms = result.ms if isinstance(result, Timed) else elapsed_ms
        self.current = None
        self.done.append(PhaseReport(phase=phase, ms=ms, servers=reports))
        self._show()
        return result

    def heading(self, text: str) -> None:
        """Set the sentence above the table."""
        self._heading = text
        self._show()

    def note(self, *updates: SearchAttributeUpdate[Any]) -> None:
        """Set search attributes."""
        workflow.upsert_search_attributes(list(updates))

    def failed(self, error: BaseException, phase: str, *, if_cancelled: str) -> FailureError:
        """Set heading and outcome of a workflow that fails or was cancelled.

        Args:
            error: The error that ends it.
            phase: The phase that it ended.
            if_cancelled: The heading if it was cancelled.

        Returns:
            The error that the workflow raises.
        """
        if was_cancelled(error):
            self.note(OUTCOME.value_set("cancelled"))
            self.heading(if_cancelled)
            return CancelledError("cancelled")
        reason = reason_of(error)
        self.note(OUTCOME.value_set("failed"))
        self.heading(f"Failed in `{phase}`: {reason.type}: {reason.message}")
        return reason

    def _show(self) -> None:
        workflow.set_current_details(self.markdown())

    def markdown(self) -> str:
        """The table that the Temporal UI shows while the workflow runs and afterwards."""
        lines = [self._heading, "", "| phase | ms | servers |", "|---|---:|---|"]
        done = {report.phase: report for report in self.done}
        planned = [*self._planned, *(phase for phase in done if phase not in self._planned)]
        if self.current and self.current not in planned:
            planned.append(self.current)
        for phase in planned:
            if report := done.get(phase):
                lines.append(f"| {phase} | {report.ms:.0f} | {_servers(report)} |")
            elif phase == self.current:
                lines.append(f"| **{phase}** | running | |")
            else:
                lines.append(f"| {phase} | | |")
        return "\n".join(lines)


def _servers(report: PhaseReport) -> str:
    cells = []
    for server in report.servers:
        counts = server.counts.model_dump(exclude_defaults=True)
        parts = [f"{server.ms:.0f} ms", *(f"{count} {name}" for name, count in counts.items())]
        if server.bytes:
            parts.append(f"{server.bytes} bytes")
        if server.note:
            parts.append(server.note)
        cells.append(f"{server.server} ({', '.join(parts)})")
    return ", ".join(cells)
