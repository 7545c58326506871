"""The twin run in one process: hundreds of crashes in minutes, each at one chosen await.

A crash comes at a moment drawn from the seed (`tests.twin.moments`): before or after a phase of
a save or restore, a call of an actor, a request to a server, an access to the rows. It ends every
task of that life; the next life starts from the disk and from Temporal's open workflows alone.
Between crashes calls fail, steps are repeated, answers of activities are lost, saves are cancelled
and acknowledgements dawdle (`tests.twin.mishaps`), and a consumer claims finished groups. `python
-m tests.twin.in_process --seed N --points K` replays a seed.

Saves and restores are the product's workflows and activities, on Temporal's test server with time
skipping (`tests.twin.temporal_here`). Not met here: a process that dies alone, the timing of real
machines, Ray and TransferQueue; `tests.twin.real` does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time
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
from tests.twin.life import TOKEN, Life, Lives, Network, job_config
from tests.twin.mishaps import Mishaps
from tests.twin.mixed_rows import SCRIPT, SORTS, demand_whole, write_mixed_rows, wrongly_over
from tests.twin.moments import PHASES, Dead, Draw
from tests.twin.outcome import Outcome
from tests.twin.ray_here import instead_of_ray
from tests.twin.results import RESULTS, write_results
from tests.twin.rows import GENERATIONS, differences, sent_too_often
from tests.twin.steps import Steps
from tests.twin.temporal_here import temporal, worker

FAST = Script(turns=SCRIPT.turns, turns_spread=SCRIPT.turns_spread, delay_s=0.02)
PROMPTS = len(SORTS) + 2
"""Those of one sort each, and two of which one uses what is restart_only: its crashes are rare."""
MAX_INFLIGHT = 5
LIFE_LIMIT_S = 60.0
SLOW_S = 0.02
CLAIM_EVERY_S = 0.03


class Twin:
    """One twin run below a folder.

    Args:
        folder: For dataset and snapshots.
        seed: Of everything that is drawn.
        points: How many crashes.
        report: Told one line for each thing worth it.
        give_up: End at the first difference.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        points: int,
        report: Callable[[str], None] = print,
        give_up: bool = False,
    ) -> None:
        """Start nothing."""
        self.outcome = Outcome(seed, PHASES)
        self._config = job_config(folder)
        self._folder = SnapshotFolder(self._config)
        self._workload = Workload(
            dataset=folder / "rows.jsonl", generations=GENERATIONS, max_inflight=MAX_INFLIGHT
        )
        self._lives = Lives()
        self._network = Network(self._lives)
        self._draw = Draw(seed)
        self._points = points
        self._report = report
        self._give_up = give_up
        self._undisturbed: dict[str, dict[str, Any]] = {}

    async def run(self) -> Outcome:
        """Run everything; differences are told in the outcome, not raised."""
        write_mixed_rows(self._workload.dataset, PROMPTS)
        async with temporal() as client, GymClient(TOKEN, transport=self._network) as gym:
            self._steps = Steps(client, self._config, gym, self._workload, self.outcome)
            with instead_of_ray(self._lives):
                async with worker(client, self._config, gym, self._lives, self._steps):
                    await self._run()
        return self.outcome

    async def _run(self) -> None:
        await self._one_life(Dead(armed=False), fresh=True, measure=True)
        demand_whole(self._undisturbed, PROMPTS)
        fresh = True
        while self.outcome.points < self._points:
            crashed = await self._one_life(self._draw.dead(fresh=fresh), fresh=fresh)
            if crashed:
                self.outcome.points += 1
                fresh = not self._has_snapshot()
            else:
                self.outcome.jobs += 1
                fresh = True
            if self._give_up and self.outcome.differences:
                return
        await self._one_life(Dead(armed=False), fresh=fresh)

    async def _one_life(self, dead: Dead, *, fresh: bool, measure: bool = False) -> bool:
        """From a start or restore to a crash (True) or to the job's end."""
        # Another seed in each life: a mishap that always met the same call would be no mishap.
        mishaps = Mishaps(self._draw.random.getrandbits(32), SLOW_S)
        mishaps.active = not measure
        life = Life(
            self._config,
            FAST,
            expect_restore=not fresh,
            dead=dead,
            mishaps=mishaps,
            network=self._network,
        )
        self._lives.now = life
        claimed: list[str] = []
        living = life.process.spawn(self._live(life, claimed, fresh=fresh, saves=not measure))
        dying = asyncio.create_task(dead.happened.wait())
        try:
            await asyncio.wait(
                {living, dying}, timeout=LIFE_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if dead.happened.is_set():
                self._note(life)
                self._look_at_runs(life)
                return True
            if not living.done():
                status = life.controller.status() if life.controller else None
                raise AssertionError(f"seed {self.outcome.seed}: a life hangs: {status}")
            living.result()
            dead.survive()
            await self._compare(life, claimed, measure=measure)
            self._look_at_runs(life)
            return False
        finally:
            dead.end()
            self.outcome.meanwhile += Tally({each.value: n for each, n in mishaps.met.items()})
            await life.process.kill()
            self._lives.now = None
            dying.cancel()
            self._verify()

    async def _live(self, life: Life, claimed: list[str], *, fresh: bool, saves: bool) -> None:
        steps = self._steps
        if fresh:
            await steps.start(life)
        else:
            await steps.restore(life)
            self._look_at_discards()
        consumer = asyncio.create_task(_consume(life, claimed))
        # Drawn per life: how often it is saved.
        every_s = self._draw.random.uniform(0.0, 0.3)
        while (state := life.running.status().state) == "running":
            await asyncio.sleep(every_s)
            if saves:
                await steps.save(life)
            self._tell_wrong()
        self._tell_wrong()  # what its restore has shown, of a job that was over at once
        if consumer.done():  # it ends by an error alone
            consumer.result()
        consumer.cancel()
        if state != "finished":
            self._differs(f"the job is {state}: {life.running.status().reason}")

    def _tell_wrong(self) -> None:
        for wrong in self._steps.wrong:
            self._differs(wrong)
        self._steps.wrong.clear()

    def _look_at_discards(self) -> None:
        for rollout, reason in self._steps.started_over.items():
            if wrong := wrongly_over(rollout, reason):
                self._differs(wrong)
            self.outcome.meanwhile["rollouts that started over"] += 1

    def _look_at_runs(self, life: Life) -> None:
        if life.controller is None or not life.controller.job.started:
            return
        for sentence in sent_too_often(life.runs(), self._steps.begun_at, life.mishaps.failed):
            self._differs(sentence)

    # --- the oracle -----------------------------------------------------------------------------

    async def _compare(self, life: Life, claimed: list[str], *, measure: bool) -> None:
        rows = _rows(life)
        if measure:
            self._undisturbed = rows
        for sentence in differences(self._undisturbed, rows):
            self._differs(sentence)
        # A claim of an earlier life must not keep a row from the consumer of this one.
        claimed += await life.rows.claim(lambda free: free)
        for sentence in claims_that_differ(claimed, rows):
            self._differs(sentence)

    def _note(self, life: Life) -> None:
        """Count what the crash has met."""
        self.outcome.phases[life.dead.phase] += 1
        meanwhile = self.outcome.meanwhile
        started = life.controller is not None and life.controller.job.started
        known = life.running.job.ledger if started else {}
        records = list(known.values())
        redispatched = [
            record
            for record in records
            if record.unfinished and any(run.state is RunPhase.FAILED for run in record.runs)
        ]
        owed = any(one.owed for one in records)
        meanwhile["crashes with an acknowledgement owed"] += owed
        meanwhile["crashes with an acknowledgement in flight"] += life.mishaps.acknowledging > 0
        meanwhile["crashes with claimed groups"] += bool(life.rows.claimed)
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


async def _consume(life: Life, claimed: list[str]) -> None:
    """Claim whole groups as they get ready, as a trainer does."""

    def whole_groups(free: set[str]) -> set[str]:
        ready = life.running.job.index.values()
        return {name for group in ready for name in group.rollout_ids} & free

    while True:
        await asyncio.sleep(CLAIM_EVERY_S)
        claimed += await life.rows.claim(whole_groups)


def claims_that_differ(claimed: list[str], rows: dict[str, Any]) -> list[str]:
    """Rows that the consumer of the last life was given twice, or not at all."""
    times = Tally(claimed)
    told = [f"{name}: given to the consumer {n} times" for name, n in times.items() if n > 1]
    return told + [f"{name}: never given to the consumer" for name in rows.keys() - times.keys()]


def _rows(life: Life) -> dict[str, dict[str, Any]]:
    return {
        key: {**asdict(row), "result": json.loads(row.result), "tag": life.rows.tags[key]}
        for key, row in life.rows.rows[TRAINING].items()
    }


def main() -> int:
    """Run from the command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.twin.in_process")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    print(f"seed {given.seed}, {given.points} points", flush=True)
    with tempfile.TemporaryDirectory(prefix="twin-") as folder:
        twin = Twin(Path(folder), seed=given.seed, points=given.points)
        outcome = asyncio.run(twin.run())
    took = time.monotonic() - began
    print("\n".join(outcome.lines(took)))
    if given.write:
        write_results("in_process", **outcome.results(took))
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The interpreter's shutdown can abort in the SDK's native threads; there is nothing to lose.
    os._exit(code)
