"""The steps of a start, a save and a restore, in the order of the workflows, in one process.

Each phase is announced to `Dead` by the name that its activity has.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rl import incarnations
from rl.collaborators import STAGING
from rl.manifest import SnapshotManifest
from rl.messages import JobConfig, Workload
from rl.snapshot_folder import SnapshotFolder
from rl.topology import demand_fit, topology_of
from tests.twin.memory import Life
from tests.twin.moments import RUNNING, START, Dead

BUDGET_S = 10.0
PASSING = ("unchanged", "job_finished")
"""Why a save may be refused though nothing is wrong."""


@dataclass
class Steps:
    """Of one job; what is not as it should be is told in `wrong`."""

    config: JobConfig
    folder: SnapshotFolder
    workload: Workload
    saves: int = 0
    restores: int = 0
    wrong: list[str] = field(default_factory=list)
    started_over: dict[str, str] = field(default_factory=dict)
    """By the last restore, with the reason."""
    begun_at: dict[str, int] = field(default_factory=dict)
    """The run that each rollout was at when this life of the job began."""

    async def start(self, life: Life, dead: Dead) -> None:
        """Begin a new line."""
        folder, self.begun_at = self.config.job_folder, {}
        incarnation = incarnations.claim(folder, {"run_id": uuid.uuid4().hex})
        await dead.enter(START)
        await life.join(incarnation)
        await life.controller.start_fresh(self.workload)
        await dead.moment("controller started")
        incarnations.record_origin(folder, incarnation, None)
        await dead.moment("origin recorded")
        life.controller.start_pumps()
        await dead.enter(RUNNING)

    async def restore(self, life: Life, dead: Dead) -> None:
        """Go on from the newest snapshot."""
        folder, restore_id = self.config.job_folder, str(uuid.uuid4())
        newest = incarnations.newest(folder)
        await dead.enter("restore: claim_job")
        incarnation = incarnations.claim(folder, {"run_id": uuid.uuid4().hex}, after=newest)
        await dead.moment("claimed")
        self.folder.sweep()
        await dead.enter("restore: discover_capabilities")
        await life.join(incarnation)
        await dead.enter("restore: select_snapshot")
        snapshot = self.folder.candidates("latest")[0]
        manifest = self.folder.verify(snapshot)
        demand_fit(manifest.topology, topology_of(self.config, life.servers, {}), snapshot=snapshot)
        await dead.enter("restore: load_data_plane")
        life.rows.load(folder / snapshot)
        files = {
            part: [file for file in manifest.files if file.path.startswith(f"{part}/")]
            for part in ("gym", "rl")
        }
        await dead.enter("restore: restore_checkpoint")
        await life.desk.restore(restore_id, manifest.checkpoint_id, folder / snapshot, files["gym"])
        await dead.enter("restore: start_controller")
        answer = await life.controller.start_restored(restore_id, folder / snapshot, files["rl"])
        self.begun_at = runs_of(life)
        await dead.enter("restore: discard_continuations")
        discarded = await life.controller.discard_continuations(restore_id)
        self.started_over = {
            one.rollout_id: one.restarted_because or "no reason" for one in discarded
        }
        self._demand_no_stale_rows(life)
        await dead.enter("restore: resume_restored")
        incarnations.record_origin(folder, incarnation, snapshot)
        await dead.moment("origin recorded")
        await life.desk.resume_restored(restore_id)
        await dead.enter("restore: start_pumps")
        sent = life.controller.start_pumps()
        if sent != len(answer.unfinished):
            self.wrong.append(f"{len(answer.unfinished)} unfinished, {sent} sent again")
        self.restores += 1
        await dead.enter(RUNNING)

    def _demand_no_stale_rows(self, life: Life) -> None:
        """Staging holds what the ledger owns: a stale row could be taken for a call's answer."""
        records = life.controller.job.ledger.copy().values()
        owned = {key for record in records for key in record.staging_keys}
        if stale := len(set(life.rows.rows[STAGING]) - owned):
            self.wrong.append(f"{stale} staging rows that nobody owns after a restore")

    async def save(self, life: Life, dead: Dead) -> None:
        """Publish a snapshot, or be refused."""
        controller, desk, checkpoint_id = life.controller, life.desk, str(uuid.uuid4())
        await dead.enter("save: begin_checkpoint")
        begun = await controller.begin_checkpoint(checkpoint_id, None)
        if not begun.agreed:
            if begun.refusal not in PASSING:
                self.wrong.append(f"a save was refused: {begun.refusal}: {begun.reason}")
            await dead.enter(RUNNING)
            return
        await dead.enter("save: close_admission")
        await controller.close_admission(checkpoint_id, BUDGET_S)
        await dead.enter("save: prepare_checkpoint")
        await desk.prepare(checkpoint_id, BUDGET_S, BUDGET_S)
        await dead.enter("save: commit_checkpoint")
        base = self.config.job_folder / begun.folder
        committed = await desk.commit(checkpoint_id, BUDGET_S, base)
        await dead.enter("save: cut_rl_state")
        cut = await controller.cut_rl_state(checkpoint_id, begun.folder, BUDGET_S)
        await dead.enter("save: publish_snapshot")
        files = [*committed.files, *cut.files]
        manifest = SnapshotManifest(
            job_id=self.config.job_id,
            snapshot=begun.snapshot,
            checkpoint_id=checkpoint_id,
            name=None,
            incarnation=begun.incarnation,
            created_at=datetime.now(UTC),
            topology=cut.topology,
            counts={"unfinished": cut.unfinished, "finished": cut.finished},
            files=files,
        )
        self.folder.publish(begun.folder, begun.snapshot, manifest, files)
        await dead.moment("published")
        await dead.enter("save: resume_checkpoint")
        await desk.resume(checkpoint_id, 2.0)
        controller.resume_checkpoint(checkpoint_id, begun.snapshot)
        await dead.enter("save: prune_snapshots")
        self.folder.prune(2, incarnation=begun.incarnation)
        self.saves += 1
        await dead.enter(RUNNING)


def runs_of(life: Life) -> dict[str, int]:
    """The newest run of each rollout."""
    records = life.controller.job.ledger.copy()
    return {rollout: record.run.attempt_index for rollout, record in records.items()}
