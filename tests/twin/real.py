"""The twin run on real processes: a job undisturbed, and again with crashes at random instants.

Both must end with the same training rows (design section 10, invariant 11): this judges every
other piece of Turnpoint. Ray and Temporal stay up for most crashes. `python -m tests.twin.real
--seed N --points K` replays a seed: the same crashes at the same shares of each phase; which
instruction they meet is up to the machine.

A crash point kills the job in a running save, in a running restore or between them. A job that
ends before all points are used up is compared, and another one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.contract import TASK_QUEUE, RestoreInput, RestoreResult, SaveInput, SaveResult
from rl.errors import NoSnapshot
from tests.real.live import AGENT, JOB, RESOURCE, Live
from tests.twin.crashes import Crashes
from tests.twin.plan import Point, Where, plan
from tests.twin.results import RESULTS, write_results
from tests.twin.rows import (
    GENERATIONS,
    SCRIPT,
    differences,
    repeated,
    rollout_ids,
    write_rows,
)

OPTIONS = {
    "policy": {
        "delay-s": str(SCRIPT.delay_s),
        "turns": str(SCRIPT.turns),
        "turns-spread": str(SCRIPT.turns_spread),
    },
    AGENT: {"max-steps": "12"},
    RESOURCE: {"tool-delay-s": "0.03"},
}
MAX_INFLIGHT = 5
"""Few, so that prompts are still waiting at most crashes."""
FEW_POINTS, FEW_PROMPTS, MANY_PROMPTS = 10, 8, 20
WORKFLOW_LIMIT_S = 150.0
JOB_LIMIT_S = 300.0
PROBE_EVERY_S = 1.5
PASSING = {"unchanged", "checkpoint_running", "data_plane_busy"}
"""Why a save may be refused though nothing is wrong."""


@dataclass
class Outcome:
    """What a twin run came to."""

    seed: int
    points: int = 0
    jobs: int = 0
    saves: int = 0
    restores: int = 0
    differences: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    """How many crashes met each phase."""
    spent_s: Counter[str] = field(default_factory=Counter)
    """Where the time went."""


class JobFinished(Exception):
    """A save was refused because the job is over."""


class Twin:
    """One twin run in a folder of its own.

    Args:
        folder: For the stack and the dataset.
        port_base: Where free ports are looked for.
        seed: Of the plan.
        points: How many crashes.
        report: Told one line for each step.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port_base: int,
        seed: int,
        points: int,
        report: Callable[[str], None] = print,
    ) -> None:
        """Start nothing."""
        self.live = Live(folder, OPTIONS, port_base=port_base, keep_latest_k=2, ready_timeout_s=120)
        self.outcome = Outcome(seed)
        self._plan = plan(seed, points)
        self._prompts = FEW_PROMPTS if points <= FEW_POINTS else MANY_PROMPTS
        self._dataset = folder / "rows.jsonl"
        self._crashes = Crashes(self.live)
        self._report = report
        self._usual_s = {Where.SAVE: 1.5, Where.RESTORE: 9.0}
        self._undisturbed: dict[str, dict[str, Any]] = {}
        self._restored = 0
        """Restores of the current job that came to their end."""
        self._client: Client

    async def run(self) -> Outcome:
        """Run everything; differences are told in the outcome, not raised."""
        self._report(f"seed {self.outcome.seed}, {len(self._plan)} points")
        write_rows(self._dataset, self._prompts)
        try:
            with self._timed("up"):
                await asyncio.to_thread(self.live.up)
            self._client = await self.live.client()
            with self._timed("undisturbed"):
                await asyncio.to_thread(self._begin)
                self._undisturbed = await asyncio.to_thread(self.live.rows)
            self._demand_whole()
            await self._crash_all()
        finally:
            await asyncio.to_thread(self.live.down)
        return self.outcome

    def _demand_whole(self) -> None:
        """The undisturbed job is the measure: it must be whole itself."""
        assert set(self._undisturbed) == rollout_ids(self._prompts)
        first = [row for name, row in self._undisturbed.items() if name.endswith("_g0")]
        assert all(row["reward"] == 1 for row in first), "the script does not count right"

    # --- the points -----------------------------------------------------------------------------

    async def _crash_all(self) -> None:
        await self._new_job()
        last: Point | None = None
        for point in self._plan:
            if last is not None and not await self._recover(last, point):
                last = point  # the restore itself was the point
                continue
            try:
                await self._go_on(point)
            except JobFinished:
                await self._compare()
                await self._new_job()
                await self._go_on(point)
            last = point
        if last is not None:
            await self._recover(last, None)
        with self._timed("to the end"):
            await self._finish()
        await self._compare()

    async def _go_on(self, point: Point) -> None:
        """Run and save as the point says, then crash."""
        for _ in range(point.saves):
            await asyncio.sleep(point.after_s)
            await self._save()
        await asyncio.sleep(point.after_s)
        handle = None
        if point.where is Where.SAVE:
            handle = await self._start_save()
            await asyncio.sleep(point.share * self._usual_s[Where.SAVE])
        await self._crash(point, handle)

    async def _recover(self, crashed: Point, point: Point | None) -> bool:
        """Restore; False if the next point's crash came into it."""
        inside = point is not None and point.where is Where.RESTORE
        saved = self._has_snapshot()
        with self._timed("bring back"):
            await self._crashes.bring_back(crashed, expect_restore=saved)
            if crashed.machine:
                self._client = await self.live.client()
        if not saved:
            await self._crashes.started()
            await self._begin_slowly()
            return True
        began = time.monotonic()
        handle = await self._start_restore()
        if point is not None and inside:
            await asyncio.sleep(point.share * self._usual_s[Where.RESTORE])
            await self._crash(point, handle)
            return False
        with self._timed("restore"):
            await self._restored_by(handle)
            await self._crashes.started()
        self._usual_s[Where.RESTORE] = time.monotonic() - began
        return True

    async def _crash(self, point: Point, handle: WorkflowHandle[Any, Any] | None) -> None:
        at = datetime.now(UTC)
        with self._timed("crash"):
            await self._crashes.crash(point)
        self.outcome.points += 1
        phase = await self._phase_at(handle, at) if handle and not point.machine else "unknown"
        met = "running" if point.where is Where.RUNNING else f"{point.where}: {phase}"
        self.outcome.met[met] += 1
        self._report(f"{point}, met {met}")
        await asyncio.to_thread(self._verify_snapshots)

    # --- the job --------------------------------------------------------------------------------

    async def _new_job(self) -> None:
        with self._timed("new job"):
            await self._begin_slowly()
        self.outcome.jobs += 1
        self._restored = 0

    async def _begin_slowly(self) -> None:
        words = ("--max-inflight", str(MAX_INFLIGHT), "--detach")
        await asyncio.to_thread(self._begin, *words)

    def _begin(self, *words: str) -> None:
        self.live.cli(
            *("run", "--rows", str(self._dataset), "--generations", str(GENERATIONS)),
            *("--fresh", *words),
        )

    async def _finish(self) -> None:
        """Let the job run to its end, saving it all the time."""
        end = time.monotonic() + JOB_LIMIT_S
        while time.monotonic() < end:
            await asyncio.sleep(PROBE_EVERY_S)
            try:
                await self._save()
            except JobFinished:
                return
        self._differs(f"the job has not finished after {JOB_LIMIT_S:.0f} s")

    async def _compare(self) -> None:
        with self._timed("compare"):
            rows = await asyncio.to_thread(self.live.rows)
        for sentence in differences(self._undisturbed, rows):
            self._differs(sentence)
        for rollout, row in rows.items():
            if row["tag"]["attempt_index"] > self._restored:
                self._differs(f"{rollout}: sent again without a restore")
        log = self.live.folder / "logs" / f"{RESOURCE}.log"
        for sentence in repeated(list(_joins_and_mutations(log))):
            self._differs(sentence)

    def _differs(self, what: str) -> None:
        self.outcome.differences.append(what)
        self._report(f"DIFFERENCE: {what} (seed {self.outcome.seed})")

    # --- saves and restores -----------------------------------------------------------------------

    async def _start_save(self) -> WorkflowHandle[Any, Any]:
        return await self._start("SaveSnapshot", "save", SaveInput(job_id=JOB))

    async def _save(self) -> None:
        began = time.monotonic()
        handle = await self._start_save()
        with self._timed("save"):
            try:
                result = await asyncio.wait_for(handle.result(), WORKFLOW_LIMIT_S)
            except WorkflowFailureError as error:
                kind = getattr(error.cause, "type", None)
                if kind == "job_finished":
                    raise JobFinished from None
                if kind not in PASSING:
                    self._differs(f"a save failed: {kind}: {error.cause}")
                return
        SaveResult.model_validate(result)
        self.outcome.saves += 1
        self._usual_s[Where.SAVE] = time.monotonic() - began

    async def _start_restore(self) -> WorkflowHandle[Any, Any]:
        return await self._start("RestoreSnapshot", "restore", RestoreInput(job_id=JOB))

    async def _restored_by(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Wait until the job is back.

        Raises:
            AssertionError: It failed; also `job_alive`, if an older restore was faster.
        """
        try:
            found = await asyncio.wait_for(handle.result(), WORKFLOW_LIMIT_S)
        except WorkflowFailureError as error:
            raise AssertionError(
                f"seed {self.outcome.seed}: a restore failed: "
                f"{getattr(error.cause, 'type', '')}: {error.cause}"
            ) from None
        result = RestoreResult.model_validate(found)
        for phase in result.phases:
            self.outcome.spent_s[f"restore: {phase.phase}"] += round(phase.ms / 1000, 3)
        self.outcome.restores += 1
        self._restored += 1
        for skipped in result.skipped:
            self._differs(f"a restore has skipped a snapshot: {skipped}")
        for rollout in result.continued:
            if rollout.restarted_because:
                self._differs(f"{rollout.rollout_id} started over: {rollout.restarted_because}")

    async def _start(self, workflow: str, what: str, given: Any) -> WorkflowHandle[Any, Any]:
        return await self._client.start_workflow(
            workflow, given, id=f"{JOB}/{what}/{time.time_ns()}", task_queue=TASK_QUEUE
        )

    async def _phase_at(self, handle: WorkflowHandle[Any, Any], at: datetime) -> str:
        """The activity that was last scheduled when the crash came."""
        phase = "before"
        history = await handle.fetch_history()
        for event in history.events:
            if event.event_time.ToDatetime(UTC) > at:
                break
            if event.HasField("activity_task_scheduled_event_attributes"):
                phase = event.activity_task_scheduled_event_attributes.activity_type.name
            elif event.HasField("workflow_execution_completed_event_attributes"):
                phase = "after"
        return phase

    def _has_snapshot(self) -> bool:
        try:
            return bool(self.live.snapshots.candidates("latest"))
        except NoSnapshot:
            return False

    def _verify_snapshots(self) -> None:
        """Every published snapshot is complete (invariant 1)."""
        for name in self.live.snapshots.snapshots():
            self.live.snapshots.verify(name)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.outcome.spent_s[what] += round(time.monotonic() - began, 3)


def _joins_and_mutations(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text().splitlines():
        if '"event": "mutation"' in line or '"operation": "join"' in line:
            yield json.loads(line)


def main() -> int:
    """Run from the command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.twin.real", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--port-base", type=int, default=27_600)
    parser.add_argument("--folder", type=Path, help="kept; by default a new one, kept on failure")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="twin-"))
    folder.mkdir(parents=True, exist_ok=True)

    def report(line: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {line}", flush=True)

    twin = Twin(
        folder, port_base=given.port_base, seed=given.seed, points=given.points, report=report
    )
    outcome = asyncio.run(twin.run())
    report(f"{outcome.points} points, {outcome.jobs} jobs, {outcome.saves} saves")
    report(f"met: {dict(sorted(outcome.met.items()))}")
    report(f"seconds: {dict(outcome.spent_s.most_common())}")
    report(f"{len(outcome.differences)} differences, seed {outcome.seed}")
    if given.write:
        write_results(
            "real",
            seed=given.seed,
            points=outcome.points,
            differences=len(outcome.differences),
            jobs=outcome.jobs,
            saves=outcome.saves,
            restores=outcome.restores,
            met=dict(sorted(outcome.met.items())),
        )
    if outcome.differences:
        report(f"logs: {folder / 'logs'}")
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
