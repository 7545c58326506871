"""The twin run in one process: hundreds of crashes in minutes, each at one chosen await.

The steps of save and restore are driven in the workflows' order. A crash comes at a moment drawn
from the seed: before or after a step, a request to a server, an access to the rows. It ends
every task of that life; the next life starts from the disk alone. `python -m
tests.twin.in_process --seed N --points K` replays a seed.

Not met here: a process that dies alone, the timing of real machines; `tests.twin.real` does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import tempfile
import time
import uuid
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl import incarnations
from rl.collaborators import TRAINING
from rl.errors import NoSnapshot
from rl.manifest import SnapshotManifest
from rl.messages import JobConfig, Workload
from rl.scripted_policy import Script
from rl.snapshot_folder import SnapshotFolder
from rl.topology import demand_fit, topology_of
from tests.twin.memory import Life, job_config
from tests.twin.results import RESULTS, write_results
from tests.twin.rows import GENERATIONS, SCRIPT, differences, rollout_ids, write_rows

FAST = Script(turns=SCRIPT.turns, turns_spread=SCRIPT.turns_spread, delay_s=0.003)
PROMPTS = 6
MAX_INFLIGHT = 4
LIFE_LIMIT_S = 20.0
BUDGET_S = 20.0


class Dead:
    """Decides at which moment a life ends."""

    def __init__(self, draw: random.Random) -> None:
        """Draw what kind of moment it is, and which one of them."""
        self.happened = asyncio.Event()
        self.at = "never"
        self.armed = True
        self._wanted, most = draw.choice(
            [("step", 12), ("step", 26), ("checkpoint/v1", 60), ("", 400), ("", 1500), ("put_", 60)]
        )
        self._left = draw.randint(1, most)

    async def moment(self, what: str) -> None:
        """Go on, or never again."""
        if not self.happened.is_set():
            if not self.armed or self._wanted not in what:
                return
            self._left -= 1
            if self._left > 0:
                return
            self.at = what
            self.happened.set()
        await asyncio.Event().wait()


@dataclass
class Outcome:
    """What a run came to."""

    seed: int
    points: int = 0
    jobs: int = 0
    saves: int = 0
    restores: int = 0
    differences: list[str] = field(default_factory=list)
    met: Tally[str] = field(default_factory=Tally)


class Twin:
    """One twin run below a folder.

    Args:
        folder: For dataset and snapshots.
        seed: Of everything that is drawn.
        points: How many crashes.
    """

    def __init__(
        self, folder: Path, *, seed: int, points: int, report: Callable[[str], None] = print
    ) -> None:
        """Start nothing."""
        self.outcome = Outcome(seed)
        self._config: JobConfig = job_config(folder)
        self._folder = SnapshotFolder(self._config)
        self._workload = Workload(
            dataset=folder / "rows.jsonl", generations=GENERATIONS, max_inflight=MAX_INFLIGHT
        )
        self._draw = random.Random(seed)
        self._points = points
        self._report = report
        self._undisturbed: dict[str, dict[str, Any]] = {}

    async def run(self) -> Outcome:
        """Run everything; differences are told in the outcome, not raised."""
        write_rows(self._workload.dataset, PROMPTS)
        await self._one_life(None, fresh=True, measure=True)
        assert set(self._undisturbed) == rollout_ids(PROMPTS)
        fresh = True
        while self.outcome.points < self._points:
            dead = Dead(self._draw)
            crashed = await self._one_life(dead, fresh=fresh)
            if crashed:
                self.outcome.points += 1
                self.outcome.met[dead.at] += 1
                fresh = not self._has_snapshot()
            else:
                self.outcome.jobs += 1
                fresh = True
        await self._one_life(None, fresh=fresh)
        return self.outcome

    async def _one_life(self, dead: Dead | None, *, fresh: bool, measure: bool = False) -> bool:
        """From a start or restore to a crash (True) or to the job's end."""
        if dead is None:
            dead = Dead(self._draw)
            dead.armed = False
        before = asyncio.all_tasks()
        life = Life(self._config, FAST, expect_restore=not fresh, moment=dead.moment)
        saves = not measure
        living = asyncio.create_task(self._live(life, dead, fresh=fresh, saves=saves))
        dying = asyncio.create_task(dead.happened.wait())
        try:
            await asyncio.wait(
                {living, dying}, timeout=LIFE_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if dead.happened.is_set():
                return True
            if not living.done():
                status = life.controller.status() if hasattr(life, "controller") else None
                raise AssertionError(f"seed {self.outcome.seed}: a life hangs: {status}")
            living.result()
            rows = _rows(life)
            if measure:
                self._undisturbed = rows
            for sentence in differences(self._undisturbed, rows):
                self._differs(sentence)
            return False
        finally:
            # From here on nothing of this life has an effect: its next moment is its last.
            dead.happened.set()
            await _end(before)
            self._verify()

    async def _live(self, life: Life, dead: Dead, *, fresh: bool, saves: bool) -> None:
        if fresh:
            await self._start(life, dead)
        else:
            await self._restore(life, dead)
        # Drawn per life: how often it is saved.
        every_s = self._draw.uniform(0.0, 0.15)
        while True:
            state = life.controller.status().state
            if state == "finished":
                return
            if state != "running":
                self._differs(f"the job is {state}: {life.controller.status().reason}")
                return
            await asyncio.sleep(every_s)
            if saves:
                await self._save(life, dead)

    # --- the steps, in the workflows' order -----------------------------------------------------

    async def _start(self, life: Life, dead: Dead) -> None:
        folder = self._config.job_folder
        incarnation = incarnations.claim(folder, {"run_id": uuid.uuid4().hex})
        await dead.moment("step start: claimed")
        await life.join(incarnation)
        await life.controller.start_fresh(self._workload)
        await dead.moment("step start: started")
        incarnations.record_origin(folder, incarnation, None)
        await dead.moment("step start: origin recorded")
        life.controller.start_pumps()

    async def _restore(self, life: Life, dead: Dead) -> None:
        folder, restore_id = self._config.job_folder, str(uuid.uuid4())
        newest = incarnations.newest(folder)
        incarnation = incarnations.claim(folder, {"run_id": uuid.uuid4().hex}, after=newest)
        await dead.moment("step restore: claimed")
        self._folder.sweep()
        await dead.moment("step restore: swept")
        await life.join(incarnation)
        await dead.moment("step restore: joined")
        snapshot = self._folder.candidates("latest")[0]
        manifest = self._folder.verify(snapshot)
        demand_fit(
            manifest.topology, topology_of(self._config, life.servers, {}), snapshot=snapshot
        )
        life.rows.load(folder / snapshot)
        await dead.moment("step restore: rows loaded")
        files = {
            part: [file for file in manifest.files if file.path.startswith(f"{part}/")]
            for part in ("gym", "rl")
        }
        await life.desk.restore(restore_id, manifest.checkpoint_id, folder / snapshot, files["gym"])
        await dead.moment("step restore: servers restored")
        answer = await life.controller.start_restored(restore_id, folder / snapshot, files["rl"])
        await dead.moment("step restore: controller started")
        for rollout in await life.controller.discard_continuations(restore_id):
            self._differs(f"{rollout.rollout_id} started over: {rollout.restarted_because}")
        await dead.moment("step restore: discarded")
        incarnations.record_origin(folder, incarnation, snapshot)
        await dead.moment("step restore: origin recorded")
        await life.desk.resume_restored(restore_id)
        await dead.moment("step restore: resumed")
        sent = life.controller.start_pumps()
        if sent != len(answer.unfinished):
            self._differs(f"{len(answer.unfinished)} unfinished, {sent} sent again")
        self.outcome.restores += 1
        await dead.moment("step restore: pumps started")

    async def _save(self, life: Life, dead: Dead) -> None:
        controller, desk, checkpoint_id = life.controller, life.desk, str(uuid.uuid4())
        begun = await controller.begin_checkpoint(checkpoint_id, None)
        if not begun.agreed:
            if begun.refusal not in ("unchanged", "job_finished"):
                self._differs(f"a save was refused: {begun.refusal}: {begun.reason}")
            return
        await dead.moment("step save: begun")
        await controller.close_admission(checkpoint_id, BUDGET_S)
        await dead.moment("step save: admission closed")
        await desk.prepare(checkpoint_id, BUDGET_S, BUDGET_S)
        await dead.moment("step save: prepared")
        base = self._config.job_folder / begun.folder
        committed = await desk.commit(checkpoint_id, BUDGET_S, base)
        await dead.moment("step save: committed")
        cut = await controller.cut_rl_state(checkpoint_id, begun.folder, BUDGET_S)
        await dead.moment("step save: cut")
        files = [*committed.files, *cut.files]
        manifest = SnapshotManifest(
            job_id=self._config.job_id,
            snapshot=begun.snapshot,
            checkpoint_id=checkpoint_id,
            name=None,
            incarnation=begun.incarnation,
            created_at=datetime.now(UTC),
            topology=cut.topology,
            counts={"unfinished": cut.unfinished, "finished": cut.finished},
            files=files,
        )
        self._folder.publish(begun.folder, begun.snapshot, manifest, files)
        await dead.moment("step save: published")
        await desk.resume(checkpoint_id, 2.0)
        await dead.moment("step save: servers resumed")
        controller.resume_checkpoint(checkpoint_id, begun.snapshot)
        await dead.moment("step save: resumed")
        self._folder.prune(2, incarnation=begun.incarnation)
        self.outcome.saves += 1

    # --- the oracle -----------------------------------------------------------------------------

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


async def _end(spared: set[asyncio.Task[Any]]) -> None:
    """End every task of a life, those included that clean up before they end."""
    while left := asyncio.all_tasks() - spared - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.05)


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
    print(f"{outcome.points} points, {outcome.jobs} jobs, {outcome.saves} saves")
    for what, count in outcome.met.most_common():
        print(f"{count:5} {what}")
    took = time.monotonic() - began
    print(f"{len(outcome.differences)} differences in {took:.0f} s, seed {outcome.seed}")
    if given.write:
        write_results(
            "in_process",
            seed=given.seed,
            points=outcome.points,
            differences=len(outcome.differences),
            jobs=outcome.jobs,
            saves=outcome.saves,
            restores=outcome.restores,
        )
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
