"""The twin run in one process: hundreds of crashes in minutes, each at one drawn await.

A crash comes at a step drawn from the seed (`tests.twin.in_process.crash_points`): before or after
a phase of a save or restore, a call of an actor, a request to a server, an access to the rows. It
ends every task of that execution; the next one starts from the disk and from Temporal's open
workflows alone. Between crashes calls fail, steps are repeated, answers of activities are lost,
saves are cancelled and acknowledgements are late (`tests.twin.mishaps`), and a consumer claims
finished groups.

Saves and restores are the product's workflows and activities, on Temporal's test server
(`tests.twin.in_process.temporal_server`). A process that dies alone, the timing of real machines,
Ray and TransferQueue are left to `tests.twin.real`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gym.client import GymClient
from rl.config import Workload
from rl.data_plane.names import TRAINING
from rl.errors import NoSnapshot
from rl.policies.scripted import Script
from rl.records.rollout_record import RunPhase
from rl.snapshots.folder import SnapshotFolder
from tests.twin.fleet import RESTART_ONLY_AGENT
from tests.twin.in_process.commands import Commands
from tests.twin.in_process.crash_points import PHASES, CrashPoint, CrashPoints
from tests.twin.in_process.execution import TOKEN, CurrentExecution, Execution, Network, job_config
from tests.twin.in_process.fake_ray import fake_ray
from tests.twin.in_process.temporal_server import temporal, worker
from tests.twin.mishaps import Mishaps
from tests.twin.mixed_rows import SCRIPT, SORTS, require_complete, write_mixed_rows, wrongly_over
from tests.twin.outcome import Outcome
from tests.twin.rows import GENERATIONS, differences, sent_too_often

FAST = Script(turns=SCRIPT.turns, turns_spread=SCRIPT.turns_spread, delay_s=0.02)
PROMPTS = len(SORTS) + 2
"""One of each sort, and two more, of which one uses the restart_only server: few crashes hit it."""
MAX_INFLIGHT = 5
EXECUTION_LIMIT_S = 60.0
SLOW_S = 0.02
CLAIM_EVERY_S = 0.03


class Twin:
    """One twin run below a folder.

    Args:
        folder: For dataset and snapshots.
        seed: Of everything that is drawn.
        points: How many crashes.
        report: Called with each line of the report.
        stop_at_first: End at the first difference.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        points: int,
        report: Callable[[str], None] = print,
        stop_at_first: bool = False,
    ) -> None:
        self.outcome = Outcome(seed, PHASES)
        self._config = job_config(folder)
        self._folder = SnapshotFolder(self._config)
        self._workload = Workload(
            dataset=folder / "rows.jsonl", generations=GENERATIONS, max_inflight=MAX_INFLIGHT
        )
        self._current = CurrentExecution()
        self._network = Network(self._current)
        self._crash_points = CrashPoints(seed)
        self._points = points
        self._report = report
        self._stop_at_first = stop_at_first
        self._undisturbed: dict[str, dict[str, Any]] = {}

    async def run(self) -> Outcome:
        """Run everything; differences are reported in the outcome, not raised."""
        write_mixed_rows(self._workload.dataset, PROMPTS)
        async with temporal() as client, GymClient(TOKEN, transport=self._network) as gym:
            self._commands = Commands(client, self._config, gym, self._workload, self.outcome)
            with fake_ray(self._current):
                async with worker(client, self._config, gym, self._current, self._commands):
                    await self._run()
        return self.outcome

    async def _run(self) -> None:
        await self._execute(CrashPoint(armed=False), fresh=True, measure=True)
        require_complete(self._undisturbed, PROMPTS)
        fresh = True
        while self.outcome.points < self._points:
            crashed = await self._execute(self._crash_points.draw(fresh=fresh), fresh=fresh)
            if crashed:
                self.outcome.points += 1
                fresh = not self._has_snapshot()
            else:
                self.outcome.jobs += 1
                fresh = True
            if self._stop_at_first and self.outcome.differences:
                return
        await self._execute(CrashPoint(armed=False), fresh=fresh)

    async def _execute(self, crash: CrashPoint, *, fresh: bool, measure: bool = False) -> bool:
        """Run from a start or restore to a crash (True) or to the job's end (False)."""
        # Another seed each time: otherwise a repeated call would always fail again.
        mishaps = Mishaps(self._crash_points.random.getrandbits(32), SLOW_S)
        mishaps.active = not measure
        execution = Execution(
            self._config,
            FAST,
            expect_restore=not fresh,
            crash=crash,
            mishaps=mishaps,
            network=self._network,
        )
        self._current.now = execution
        claimed: list[str] = []
        working = execution.process.spawn(
            self._work(execution, claimed, fresh=fresh, saves=not measure)
        )
        crashing = asyncio.create_task(crash.happened.wait())
        try:
            await asyncio.wait(
                {working, crashing}, timeout=EXECUTION_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if crash.happened.is_set():
                self._count(execution)
                self._check_runs(execution)
                return True
            if not working.done():
                status = execution.controller.status() if execution.controller else None
                raise AssertionError(f"seed {self.outcome.seed}: an execution hangs: {status}")
            working.result()
            crash.disarm()
            await self._compare(execution, claimed, measure=measure)
            self._check_runs(execution)
            return False
        finally:
            crash.happen_now()
            self.outcome.meanwhile += Tally({each.value: n for each, n in mishaps.met.items()})
            await execution.process.kill()
            self._current.now = None
            crashing.cancel()
            self._verify()

    async def _work(
        self, execution: Execution, claimed: list[str], *, fresh: bool, saves: bool
    ) -> None:
        commands = self._commands
        if fresh:
            await commands.start(execution)
        else:
            await commands.restore(execution)
            self._check_restarts()
        consumer = asyncio.create_task(_consume(execution, claimed))
        # Drawn per execution: how often it is saved.
        every_s = self._crash_points.random.uniform(0.0, 0.3)
        while (state := execution.running.status().state) == "running":
            await asyncio.sleep(every_s)
            if saves:
                await commands.save(execution)
            self._report_violations()
        self._report_violations()  # the restore's, of a job that was over at once
        if consumer.done():  # only an error ends it
            consumer.result()
        consumer.cancel()
        if state != "finished":
            self._differs(f"the job is {state}: {execution.running.status().reason}")

    def _report_violations(self) -> None:
        for sentence in self._commands.wrong:
            self._differs(sentence)
        self._commands.wrong.clear()

    def _check_restarts(self) -> None:
        for rollout, reason in self._commands.started_over.items():
            if wrong := wrongly_over(rollout, reason):
                self._differs(wrong)
            self.outcome.meanwhile["rollouts that started over"] += 1

    def _check_runs(self, execution: Execution) -> None:
        if execution.controller is None or not execution.controller.job.started:
            return
        for sentence in sent_too_often(
            execution.runs(), self._commands.begun_at, execution.mishaps.failed
        ):
            self._differs(sentence)

    # --- the oracle -----------------------------------------------------------------------------

    async def _compare(self, execution: Execution, claimed: list[str], *, measure: bool) -> None:
        rows = _rows(execution)
        if measure:
            self._undisturbed = rows
        for sentence in differences(self._undisturbed, rows):
            self._differs(sentence)
        # A claim before a crash must not keep a row from the consumer after it.
        claimed += await execution.rows.claim(lambda free: free)
        for sentence in claims_that_differ(claimed, rows):
            self._differs(sentence)

    def _count(self, execution: Execution) -> None:
        """Count what was under way at the crash."""
        self.outcome.phases[execution.crash.phase] += 1
        meanwhile = self.outcome.meanwhile
        started = execution.controller is not None and execution.controller.job.started
        known = execution.running.job.ledger if started else {}
        records = list(known.values())
        redispatched = [
            record
            for record in records
            if record.unfinished and any(run.state is RunPhase.FAILED for run in record.runs)
        ]
        owed = any(one.owed for one in records)
        meanwhile["crashes with an acknowledgement owed"] += owed
        meanwhile["crashes with an acknowledgement in flight"] += (
            execution.mishaps.acknowledging > 0
        )
        meanwhile["crashes with claimed groups"] += bool(execution.rows.claimed)
        meanwhile["crashes with a redispatched run"] += bool(redispatched)
        agents = {one.agent for one in records if one.unfinished}
        meanwhile["crashes with a restart_only rollout"] += RESTART_ONLY_AGENT in agents

    def _has_snapshot(self) -> bool:
        try:
            return bool(self._folder.candidates("latest"))
        except NoSnapshot:
            return False

    def _verify(self) -> None:
        """Every published snapshot is complete (invariant 1)."""
        for name in self._folder.snapshots():
            self._folder.verify(name)

    def _differs(self, what: str) -> None:
        self.outcome.differences.append(what)
        self._report(f"DIFFERENCE: {what} (seed {self.outcome.seed})")


async def _consume(execution: Execution, claimed: list[str]) -> None:
    """Claim each group once it is complete, as a trainer does."""

    def whole_groups(free: set[str]) -> set[str]:
        ready = execution.running.job.index.values()
        return {name for group in ready for name in group.rollout_ids} & free

    while True:
        await asyncio.sleep(CLAIM_EVERY_S)
        claimed += await execution.rows.claim(whole_groups)


def claims_that_differ(claimed: list[str], rows: dict[str, Any]) -> list[str]:
    """Sentences about rows that the last execution's consumer got twice or never."""
    times = Tally(claimed)
    found = [f"{name}: given to the consumer {n} times" for name, n in times.items() if n > 1]
    return found + [f"{name}: never given to the consumer" for name in rows.keys() - times.keys()]


def _rows(execution: Execution) -> dict[str, dict[str, Any]]:
    return {
        key: {**asdict(row), "result": json.loads(row.result), "tag": execution.rows.tags[key]}
        for key, row in execution.rows.rows[TRAINING].items()
    }
