"""The twin run on real processes: a job undisturbed, and again with crashes at drawn times.

Both must end with the same training rows (design section 10, invariant 11): this judges every
other piece of Turnpoint. Ray and Temporal stay up for most crashes. `python -m tests.twin.real
--seed N --points K` replays a seed: the same crashes in the same phases; which instruction they
hit depends on the machine.

A crash point kills the job in a running save, in a running restore or between them. Between
crashes calls fail, steps are repeated and acknowledgements are late (`tests.twin.mishaps`), and a
consumer claims rows. A job that ends before all points are used up is compared, and another one
begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.contract import TASK_QUEUE, RestoreInput, RestoreResult, SaveInput, SaveResult
from gym.protocol import Kind
from rl.errors import NoSnapshot
from tests.real.live import JOB, Live
from tests.twin.fleet import KINDS
from tests.twin.mixed_rows import SCRIPT, SORTS, write_mixed_rows
from tests.twin.outcome import Outcome
from tests.twin.overtaken import is_overtaken
from tests.twin.real.crash_plan import PHASES, Point, Where, plan
from tests.twin.real.crashes import GYM, Crashes
from tests.twin.real.oracle import Oracle
from tests.twin.real.phase_timing import PhaseTiming, phase_at
from tests.twin.rows import GENERATIONS, rollout_ids

POLICY = {
    "delay-s": str(SCRIPT.delay_s),
    "turns": str(SCRIPT.turns),
    "turns-spread": str(SCRIPT.turns_spread),
}
MAX_INFLIGHT = 4
"""Few, so that prompts still wait at most crashes."""
FEW_POINTS, FEW_PROMPTS, MANY_PROMPTS = 12, len(SORTS), 3 * len(SORTS)
WORKFLOW_LIMIT_S = 150.0
JOB_LIMIT_S = 300.0
PROBE_EVERY_S = 1.5
PASSING = {"unchanged", "checkpoint_running", "data_plane_busy"}
"""Reasons of refusals that are right."""


KNOWN = [f"{where}: {phase}" for where, phases in PHASES.items() for phase in phases]
"""Phases that a crash may hit."""


class JobFinished(Exception):
    """A save was refused because the job is over."""


class Twin:
    """One twin run in a folder of its own.

    Args:
        folder: For the stack and the dataset.
        port_base: Where free ports are looked for; the Gym servers get those from 100 on.
        seed: Of the plan.
        points: How many crashes.
        report: Called with one line for each step.
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
        servers = [
            {"name": name, "kind": kind.value, "url": f"http://127.0.0.1:{port_base + 100 + n}"}
            for n, (name, kind) in enumerate(KINDS.items())
        ]
        self.live = Live(
            folder,
            {"policy": POLICY},
            port_base=port_base,
            servers=servers,
            generation_port=port_base + 90,
            keep_latest_k=2,
            max_runs=100,
            ready_timeout_s=120,
        )
        self.outcome = Outcome(seed, [*KNOWN, "running"])
        self._plan = plan(seed, points)
        self._prompts = FEW_PROMPTS if points <= FEW_POINTS else MANY_PROMPTS
        self._dataset = folder / "rows.jsonl"
        self._crashes = Crashes(self.live, seed)
        self._timing = PhaseTiming(self.live)
        self._oracle = Oracle(self.live, self._crashes, self._differs)
        self._report = report
        self._older: WorkflowHandle[Any, Any] | None = None
        """The restore that the last crash interrupted."""
        self._client: Client

    async def run(self) -> Outcome:
        """Run everything; differences are reported in the outcome, not raised."""
        began = time.monotonic()
        self._report(f"seed {self.outcome.seed}, {len(self._plan)} points")
        write_mixed_rows(self._dataset, self._prompts)
        try:
            with self._timed("up"):
                await self._crashes.up()
                self._crashes.start_servers(expect_restore=False, undisturbed=True)
                self._client = await self.live.client()
                await self._crashes.servers_ready()
            with self._timed("undisturbed"):
                await asyncio.to_thread(self._begin, "--detach")
                await self._finish(undisturbed=True)
                await self._oracle.measure(self._prompts)
            self._report(f"undisturbed after {time.monotonic() - began:.0f} s")
            await self._crash_all()
        finally:
            await self._oracle.aclose()
            await asyncio.to_thread(self.live.down)
        return self.outcome

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
        if point.claims:
            self._oracle.claim()
        with self._timed("running"):
            for _ in range(point.saves):
                await asyncio.sleep(point.after_s)
                await self._save()
            await asyncio.sleep(point.after_s)
        if point.where is Where.RUNNING:
            await self._crash(point, None)
            return
        async with self._timing.held(point) as hold:
            while True:
                handle = await self._start_save()
                if await hold.is_reached_by(handle):
                    break
                await self._saved_by(handle)  # it was refused
                await asyncio.sleep(0.2)
            await self._crash(point, handle)

    async def _recover(self, crashed: Point, point: Point | None) -> bool:
        """Restore; False if the next point's crash came into it."""
        saved = self._has_snapshot()
        with self._timed("bring back"):
            if crashed.machine:
                await self._crashes.up()
                self._client = await self.live.client()
            self._crashes.start_servers(expect_restore=saved)
        if not saved:
            await self._crashes.servers_ready()
            await self._begin_slowly()
            return True
        if point is not None and point.where is Where.RESTORE:
            async with self._timing.held(point) as hold:
                with self._timed("restore, until its crash"):
                    handle = await self._start_restore()
                    reached = await hold.is_reached_by(handle)
                if not reached:
                    await self._restored_by(handle)
                await self._crash(point, handle)
            return False
        with self._timed("restore"):
            await self._restored_by(await self._start_restore())
        return True

    async def _crash(self, point: Point, handle: WorkflowHandle[Any, Any] | None) -> None:
        at = datetime.now(UTC)
        phase, inside = point.phase, True
        # Before the crash if Temporal ends with it.
        if handle is not None and point.machine:
            phase, inside = await phase_at(handle, at)
        with self._timed("crash"):
            await self._crashes.crash(point)
        self.outcome.points += 1
        if handle is not None and not point.machine:
            phase, inside = await phase_at(handle, at)
        if point.where is Where.RESTORE:
            self._older = handle
        met = f"{point.where}: {phase}" if handle is not None else "running"
        self.outcome.phases[met] += 1
        self.outcome.meanwhile += self._oracle.meanwhile()
        self._report(f"{point}; met {met}{'' if inside else ', just over'}")
        await self._oracle.crashed()
        await asyncio.to_thread(self._verify_snapshots)

    # --- the job --------------------------------------------------------------------------------

    async def _new_job(self) -> None:
        with self._timed("new job"):
            await self._crashes.kill(*GYM)
            self._crashes.start_servers(expect_restore=False)
            await self._crashes.servers_ready()
            await self._begin_slowly()
        self.outcome.jobs += 1

    async def _begin_slowly(self) -> None:
        words = ("--max-inflight", str(MAX_INFLIGHT), "--detach")
        await asyncio.to_thread(self._begin, *words)
        self._oracle.begins()

    def _begin(self, *words: str) -> None:
        self.live.cli(
            *("run", "--rows", str(self._dataset), "--generations", str(GENERATIONS)),
            *("--fresh", *words),
        )

    async def _finish(self, *, undisturbed: bool = False) -> None:
        """Let the job run to its end, saving it all the time, or not before all runs are over."""
        end = time.monotonic() + JOB_LIMIT_S
        runs = len(rollout_ids(self._prompts)) if undisturbed else 0
        while time.monotonic() < end:
            await asyncio.sleep(PROBE_EVERY_S)
            if len(self._crashes.logged(Kind.AGENT, "run_finished")) < runs:
                continue
            try:
                await self._save()
            except JobFinished:
                return
        self._differs(f"the job has not finished after {JOB_LIMIT_S:.0f} s")

    async def _compare(self) -> None:
        with self._timed("compare"):
            await self._oracle.compare()

    def _differs(self, what: str) -> None:
        self.outcome.differences.append(what)
        self._report(f"DIFFERENCE: {what} (seed {self.outcome.seed})")

    # --- saves and restores -----------------------------------------------------------------------

    async def _start_save(self) -> WorkflowHandle[Any, Any]:
        return await self._start("SaveSnapshot", "save", SaveInput(job_id=JOB))

    async def _save(self) -> None:
        with self._timed("save"):
            await self._saved_by(await self._start_save())

    async def _saved_by(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Wait for the end of a save.

        Raises:
            JobFinished: There is nothing to save any more.
        """
        try:
            result = await asyncio.wait_for(handle.result(), WORKFLOW_LIMIT_S)
        except WorkflowFailureError as error:
            kind = getattr(error.cause, "type", None)
            if kind == "job_finished":
                raise JobFinished from None
            if kind not in PASSING:
                self._differs(f"a save failed: {kind}: {error.cause}")
            return
        self._timing.measured(SaveResult.model_validate(result).phases)
        self.outcome.saves += 1

    async def _start_restore(self) -> WorkflowHandle[Any, Any]:
        return await self._start("RestoreSnapshot", "restore", RestoreInput(job_id=JOB))

    async def _restored_by(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Wait until the job is back.

        Raises:
            AssertionError: It failed, and no older restore was faster.
        """
        older, self._older = self._older, None
        try:
            found = await asyncio.wait_for(handle.result(), WORKFLOW_LIMIT_S)
        except WorkflowFailureError as error:
            if older is None or not is_overtaken(error.cause, older.id):
                raise AssertionError(
                    f"seed {self.outcome.seed}: a restore failed: {error.cause!r}"
                ) from None
            again = self._client.get_workflow_handle(older.id)
            found = await asyncio.wait_for(again.result(), WORKFLOW_LIMIT_S)
        result = RestoreResult.model_validate(found)
        self._timing.measured(result.phases)
        for phase in result.phases:
            self.outcome.spent_s[f"restore: {phase.phase}"] += round(phase.ms / 1000, 3)
        self.outcome.restores += 1
        self._oracle.restored(result)

    async def _start(self, workflow: str, what: str, given: Any) -> WorkflowHandle[Any, Any]:
        return await self._client.start_workflow(
            workflow, given, id=f"{JOB}/{what}/{time.time_ns()}", task_queue=TASK_QUEUE
        )

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
