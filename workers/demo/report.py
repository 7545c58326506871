"""The figures of the demo, each read from where it happened.

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

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from activities.contract import RestoreResult, SaveResult
from gym.protocol import INNER_FILES_FOLDER, Continuation, capture_key
from rl.data_plane.rows import TrainingRow
from rl.messages import ControllerStatus
from rl.snapshots.folder import SnapshotFolder
from workers.config.settings import Settings
from workers.errors import NotRunning
from workers.temporal import connect

AGENT, RESOURCE = "simple_agent", "counter"


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


class Story(BaseModel):
    """What the demo did."""

    model_config = ConfigDict(frozen=True)

    saved: SaveResult
    restored: RestoreResult
    end: ControllerStatus
    rows_expected: int


class Continued(BaseModel):
    """One rollout that was unfinished at the save."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    turns_at_save: int
    attempt_index: int
    goes_on: str
    turns_saved: int


class Measured(BaseModel):
    """The report, and a row for each unfinished rollout."""

    model_config = ConfigDict(frozen=True)

    report: Report
    continued: list[Continued]


class Mutation(BaseModel):
    """One effective mutation, as the resource server logged it."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    attempt: int
    request_id: str
    revision: int

    @property
    def place(self) -> str:
        """The request id without the run: the same step of another run has the same place."""
        return self.request_id.removeprefix(capture_key(self.rollout_id, self.attempt) + "/")

    @property
    def call(self) -> int | None:
        """Index of the model call whose step it is; None for seed and verify."""
        name, _, index = self.place.partition("/")[0].partition("-")
        return int(index) if name == "call" else None


async def measure(settings: Settings, story: Story) -> Measured:
    """Read every figure. Needs the stack up and the job over."""
    saved = _continuations(settings, story.saved.snapshot or "")
    rows = await _training_rows()
    went_on = _went_on(settings)
    continued = [_continued(line, went_on) for line in saved.values()]
    workflows = await _workflows(settings)
    report = Report(
        rollouts=story.end.rollouts,
        finished=story.end.finished,
        unfinished_at_save=len(saved),
        continued=sum(1 for rollout in continued if rollout.turns_saved == rollout.turns_at_save),
        restarted=sum(1 for rollout in continued if rollout.turns_saved != rollout.turns_at_save),
        turns_saved=sum(rollout.turns_saved for rollout in continued),
        mutations_repeated=_repeated(mutations(settings), saved, rows),
        training_rows=len(rows),
        rows_expected=story.rows_expected,
        duplicate_rows=_duplicates(
            _rows_put_until(settings, story.saved.snapshot), story.end, rows
        ),
        pause_s=story.saved.pause_s or 0.0,
        pause_by_phase={phase.phase: phase.ms / 1000 for phase in story.saved.phases},
        restore_s=next(flow["seconds"] for flow in workflows if flow["type"] == "RestoreSnapshot"),
        snapshot=story.saved.snapshot or "",
        workflows=workflows,
    )
    return Measured(report=report, continued=continued)


# --- servers' logs and the snapshot -----------------------------------------------------------


def mutations(settings: Settings) -> list[Mutation]:
    """Every effective mutation of all lives of the resource server, in order."""
    return [
        Mutation.model_validate({name: line[name] for name in Mutation.model_fields})
        for line in _log(settings, RESOURCE)
        if line.get("event") == "mutation"
    ]


def _log(settings: Settings, name: str) -> Iterator[dict[str, Any]]:
    path = settings.state_dir / "logs" / f"{name}.log"
    if not path.exists():
        return
    with path.open(errors="replace") as file:
        for line in file:
            # A line that SIGKILL cut in half, or one that is not the server's own.
            if line.startswith("{") and line.endswith("}\n"):
                yield json.loads(line)


def _continuations(settings: Settings, snapshot: str) -> dict[str, Continuation]:
    folder = settings.snapshots / settings.job_id / snapshot / INNER_FILES_FOLDER
    path: Path = folder / AGENT / "continuations.jsonl"
    lines = [Continuation.model_validate_json(line) for line in path.read_text().splitlines()]
    return {line.rollout_id: line for line in lines}


def _went_on(settings: Settings) -> dict[tuple[str, int], str | None]:
    """(rollout, run) -> the call after which the agent continued it."""
    return {
        (line["rollout_id"], line["attempt"]): line["after"]
        for line in _log(settings, AGENT)
        if line.get("event") == "run_continued"
    }


def _turns(continuation: Continuation) -> int:
    call = continuation.last_committed_model_call_id
    return 0 if call is None else int(call.removeprefix("call-")) + 1


def _continued(line: Continuation, went_on: dict[tuple[str, int], str | None]) -> Continued:
    attempt, turns = line.attempt_index + 1, _turns(line)
    after = went_on.get((line.rollout_id, attempt))
    kept = after is not None and after == line.last_committed_model_call_id
    otherwise = "starts over" if turns else "from its start"
    return Continued(
        rollout_id=line.rollout_id,
        turns_at_save=turns,
        attempt_index=attempt,
        goes_on=f"continues after {after}" if kept else otherwise,
        turns_saved=turns if kept else 0,
    )


# --- TransferQueue ----------------------------------------------------------------------------


async def _training_rows() -> dict[str, tuple[TrainingRow, dict[str, Any]]]:
    # Not at the top: Ray reads its environment when it is imported, and the demo has no cluster
    # before its last chapter.
    from rl.actors import attached
    from rl.data_plane.names import TRAINING
    from rl.data_plane.transfer_queue import DataPlane

    await attached()
    data_plane = await DataPlane.attach()
    return await data_plane.get_training(await data_plane.keys(TRAINING))


def _rows_put_until(settings: Settings, snapshot: str | None) -> int:
    """Rows that the saved life of the job had put when its TransferQueue was saved."""
    manifest = SnapshotFolder(settings.job_config()).manifest(snapshot or "")
    return manifest.counts["rows_put"]


def _duplicates(
    put_before: int, end: ControllerStatus, rows: dict[str, tuple[TrainingRow, dict[str, Any]]]
) -> int:
    """Puts beyond one for each rollout.

    What the crash undid is in neither count: the manifest's ends with the rows that were saved,
    the status's begins with the restore.
    """
    return put_before + end.rows_put - len({tag["rollout_id"] for _, tag in rows.values()})


def _repeated(
    log: list[Mutation],
    saved: dict[str, Continuation],
    rows: dict[str, tuple[TrainingRow, dict[str, Any]]],
) -> int:
    """Mutations that took effect twice on the state that a rollout ended with.

    The state of a rollout's last run comes from the mutations of that run and, if it was
    continued, from the earlier ones up to the saved revision. Counted are: a place that is
    there twice; a revision above the number of places; and a counter value in the conversation
    that its increments do not explain.
    """
    repeated = 0
    for rollout_id, (row, tag) in rows.items():
        last = tag["attempt_index"]
        kept = 0
        if rollout_id in saved and last > saved[rollout_id].attempt_index:
            kept = saved[rollout_id].resource_state_revisions.get(RESOURCE) or 0
        line = [
            mutation.place
            for mutation in log
            if mutation.rollout_id == rollout_id
            and (mutation.attempt == last or mutation.revision <= kept)
        ]
        places = set(line)
        repeated += len(line) - len(places)
        repeated += max(0, tag["mutations"] - len(places))
        repeated += _unexplained(json.loads(row.result))
    return repeated


def _unexplained(result: dict[str, Any]) -> int:
    """Counter values in a conversation that differ from the sum of its increments."""
    count = result["initial_count"]
    calls: dict[str, dict[str, Any]] = {}
    wrong = 0
    for item in result["response"]["output"]:
        if item["type"] == "function_call":
            calls[item["call_id"]] = item
        elif item["type"] == "function_call_output":
            call = calls[item["call_id"]]
            answer = _json(item["output"])
            if call["name"] == "increment_counter" and answer.get("success"):
                count += json.loads(call["arguments"])["count"]
            elif call["name"] == "get_counter_value" and "count" in answer:
                wrong += answer["count"] != count
    return wrong


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}  # an environment's refusal in plain words: nothing was counted
    return found if isinstance(found, dict) else {}


# --- Temporal ---------------------------------------------------------------------------------


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
