"""The figures of the demo, each read at its source.

| figure | from |
|---|---|
| `unfinished_at_save`, `turns_saved` | `continuations.jsonl` of the snapshot |
| `continued`, `restarted` | the agent server's log after the restore |
| `mutations_repeated` | the resource server's log, training rows' revisions, counter arithmetic |
| `training_rows` | TransferQueue |
| `duplicate_rows` | puts that the controllers counted (manifest, status) against those rows |
| `finished` | the controller |
| `pause_s`, `pause_by_phase` | the result of the save workflow |
| `restore_s`, `workflows` | Temporal's history |
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from activities.contract import SaveResult
from gym.protocol import INNER_FILES_FOLDER, Continuation
from rl.messages import ControllerStatus
from rl.snapshots.folder import SnapshotFolder
from workers.config.settings import Settings
from workers.demo.mutations import Rows, log_lines, mutations, repeated
from workers.errors import NotRunning
from workers.temporal import connect

AGENT = "simple_agent"


class Report(BaseModel):
    """`build/demo/report.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rollouts: int
    finished: int
    unfinished_at_save: int
    continued: int
    restarted: int
    turns_saved: int
    """Turns that starting over would have cost."""
    mutations_repeated: int
    training_rows: int
    rows_expected: int
    duplicate_rows: int
    """Puts of a training row beyond one for each rollout: TransferQueue itself overwrites."""
    pause_s: float
    pause_by_phase: dict[str, float]
    """Seconds of each phase of the save, the ones before and after the pause included."""
    restore_s: float
    snapshot: str
    workflows: list[dict[str, Any]]


class Continued(BaseModel):
    """One rollout that was unfinished at the save."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    turns_at_save: int
    attempt_index: int
    goes_on: str
    turns_saved: int


async def measure(
    settings: Settings, saved: SaveResult, end: ControllerStatus, rows_expected: int
) -> tuple[Report, list[Continued]]:
    """Read every figure. Needs the stack up and the job over.

    Args:
        settings: Of the job.
        saved: Result of the save.
        end: The job's last status.
        rows_expected: Number of rollouts that the job was started with.

    Returns:
        The report, and a row for each rollout that was unfinished at the save.
    """
    snapshot = saved.snapshot or ""
    continuations = _continuations(settings, snapshot)
    rows = await _training_rows()
    went_on = _went_on(settings)
    continued = [_continued(line, went_on) for line in continuations.values()]
    kept = sum(rollout.turns_saved == rollout.turns_at_save for rollout in continued)
    workflows = await _workflows(settings)
    put_before = SnapshotFolder(settings.job_config()).manifest(snapshot).counts["rows_put"]
    report = Report(
        rollouts=end.rollouts,
        finished=end.finished,
        unfinished_at_save=len(continuations),
        continued=kept,
        restarted=len(continued) - kept,
        turns_saved=sum(rollout.turns_saved for rollout in continued),
        mutations_repeated=repeated(mutations(settings), continuations, rows),
        training_rows=len(rows),
        rows_expected=rows_expected,
        duplicate_rows=_duplicates(put_before, end, rows),
        pause_s=saved.pause_s or 0.0,
        pause_by_phase={phase.phase: phase.ms / 1000 for phase in saved.phases},
        restore_s=next(flow["seconds"] for flow in workflows if flow["type"] == "RestoreSnapshot"),
        snapshot=snapshot,
        workflows=workflows,
    )
    return report, continued


def _continuations(settings: Settings, snapshot: str) -> dict[str, Continuation]:
    folder = settings.snapshots / settings.job_id / snapshot / INNER_FILES_FOLDER
    text = (folder / AGENT / "continuations.jsonl").read_text()
    lines = [Continuation.model_validate_json(line) for line in text.splitlines()]
    return {line.rollout_id: line for line in lines}


def _went_on(settings: Settings) -> dict[tuple[str, int], str | None]:
    """The call after which the agent continued each run, by rollout and run."""
    return {
        (line["rollout_id"], line["attempt"]): line["after"]
        for line in log_lines(settings, AGENT)
        if line.get("event") == "run_continued"
    }


def _continued(line: Continuation, went_on: dict[tuple[str, int], str | None]) -> Continued:
    call = line.last_committed_model_call_id
    turns = 0 if call is None else int(call.removeprefix("call-")) + 1
    attempt = line.attempt_index + 1
    after = went_on.get((line.rollout_id, attempt))
    kept = after is not None and after == call
    otherwise = "starts over" if turns else "from its start"
    return Continued(
        rollout_id=line.rollout_id,
        turns_at_save=turns,
        attempt_index=attempt,
        goes_on=f"continues after {after}" if kept else otherwise,
        turns_saved=turns if kept else 0,
    )


async def _training_rows() -> Rows:
    # Not at the top: Ray reads its environment when it is imported, and the demo has no cluster
    # before its last chapter.
    from rl.actors import attached
    from rl.data_plane.names import TRAINING
    from rl.data_plane.transfer_queue import DataPlane

    await attached()
    data_plane = await DataPlane.attach()
    return await data_plane.get_training(await data_plane.keys(TRAINING))


def _duplicates(put_before: int, end: ControllerStatus, rows: Rows) -> int:
    """Puts beyond one for each rollout.

    Rows that the crash undid are in neither count: the manifest's (`put_before`) ends with the
    rows that were saved, the status's begins with the restore.
    """
    return put_before + end.rows_put - len({tag["rollout_id"] for _, tag in rows.values()})


async def _workflows(settings: Settings) -> list[dict[str, Any]]:
    """Saves and restores of the job, from Temporal's own record, oldest first."""
    client = await connect(settings)
    found = []
    for kind in ("SaveSnapshot", "RestoreSnapshot"):
        query = f'WorkflowType = "{kind}" AND TurnpointJob = "{settings.job_id}"'
        async for flow in client.list_workflows(query):
            if flow.status is None or flow.close_time is None:
                raise NotRunning(f"workflow {flow.id} has not ended; look at it in the UI")
            found.append(
                {
                    "id": flow.id,
                    "run_id": flow.run_id,
                    "type": kind,
                    "status": flow.status.name.lower(),
                    "started": flow.start_time.isoformat(),
                    "seconds": (flow.close_time - flow.start_time).total_seconds(),
                }
            )
    return sorted(found, key=lambda flow: flow["started"])
