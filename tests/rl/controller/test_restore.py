"""A controller restored from what another one has saved."""

import asyncio
from pathlib import Path

import pytest

from gym.protocol import (
    CheckpointConflict,
    DigestMismatch,
    InvalidPhase,
    SessionEntry,
    SessionUncertain,
    WrittenFile,
)
from rl.errors import ControllerLost, InventoryMismatch, TopologyMismatch
from rl.messages import Inventory
from rl.records.rollout_record import RunPhase
from tests.rl.fakes import AGENT, COUNTER, MODEL, World, line, until

SAVE, RESTORE = "aaaaaaaa-1", "restore-1"


class Saved:
    """A snapshot's RL part, and the data plane as it was loaded."""

    def __init__(self, old: World, folder: Path, files: list[WrittenFile]) -> None:
        self.old, self.folder, self.files = old, folder, files

    def world(self, root: Path, incarnation: int = 2) -> World:
        """A fresh controller of the next incarnation beside the restored servers."""
        rows = len(self.old.workload.dataset.read_text().splitlines())
        world = World(root, rows=rows, incarnation=incarnation)
        for partition, rows in self.old.plane.rows.items():
            world.plane.rows[partition].update(rows)
        answer = self.old.gym.answer
        world.gym.answer = Inventory(
            continuations={
                AGENT: [
                    old.model_copy(update={"attempt_index": old.attempt_index + 1})
                    for old in answer.continuations[AGENT]
                ]
            },
            sessions={
                COUNTER: [
                    old.model_copy(update={"attempt_index": old.attempt_index + 1})
                    for old in answer.sessions.get(COUNTER, [])
                ]
            },
            storage=answer.storage,
            line_counts=answer.line_counts,
        )
        return world


async def _saved(tmp_path: Path, *, revision: int = 3, named: int | None = 3) -> Saved:
    """Save a job with a rollout in each state.

    p0_g0 finished; p0_g1 held after two calls with a session; p1_g0 at its start; p1_g1 not
    accepted by the agent yet; prompt p2 not given out.
    """
    world = World(tmp_path, rows=3)
    world.workload = world.workload.model_copy(update={"max_inflight": 4})
    await world.controller.start_fresh(world.workload)
    world.controller.start_pumps()
    await until(lambda: len(world.gym.sent) == 4)
    begun = await world.controller.saves.begin(SAVE, None)
    await world.controller.saves.close_admission(SAVE, 1)
    world.gym.finish("p0_g0")
    await until(lambda: world.controller.status().finished == 1)
    await until(lambda: world.controller.status().owed == 0)
    world.hold("p0_g1", calls=2)
    held = world.gym.answer
    world.gym.answer = held.model_copy(
        update={
            "continuations": {
                AGENT: [
                    line("p0_g1", calls=2, revisions={COUNTER: named}),
                    line("p1_g0", calls=0),
                ]
            },
            "sessions": {
                COUNTER: [SessionEntry(rollout_id="p0_g1", attempt_index=0, revision=revision)]
            },
            "line_counts": {AGENT: 2},
        }
    )
    answer = await world.controller.saves.cut(SAVE, begun.folder, 5)
    assert (answer.finished, answer.unfinished) == (1, 3)
    return Saved(world, world.config.job_folder / begun.folder, answer.files)


async def test_each_unfinished_rollout_goes_on_as_the_next_run(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    controller = world.controller
    answer = await controller.restore.start(RESTORE, saved.folder, saved.files)
    assert answer.finished == 1
    assert [
        (r.rollout_id, r.attempt_index, r.last_committed_model_call_id) for r in answer.unfinished
    ] == [("p0_g1", 1, "call-1"), ("p1_g0", 1, None), ("p1_g1", 1, None)]
    assert controller.status().state == "restored"
    assert (await controller.saves.begin("x", None)).refusal == "restore_not_finished"
    assert await controller.restore.start(RESTORE, saved.folder, saved.files) == answer

    world.plane.stage("1/p1_g0/call-0")  # a call whose turn the snapshot does not hold
    assert await controller.restore.discard(RESTORE) == []
    assert await controller.restore.discard(RESTORE) == []
    assert world.gym.discarded == [] and world.plane.claims_reset == 1
    assert await world.plane.keys("rollout_staging") == {
        f"1/{name}/call-{call}" for name in ("p0_g0", "p0_g1") for call in range(2)
    }

    assert world.gym.sent == []
    assert controller.start_pumps() == 3
    assert controller.start_pumps() == 3
    await until(lambda: len(world.gym.sent) == 4)  # max_inflight of the saved workload
    assert world.gym.sent == [("p0_g1", 1), ("p1_g0", 1), ("p1_g1", 1), ("p2_g0", 0)]
    for name, attempt in list(world.gym.sent):
        world.gym.finish(name, attempt)
    await until(lambda: ("p2_g1", 0) in world.gym.sent)
    world.gym.finish("p2_g1")
    await until(lambda: controller.status().state == "finished")
    assert sorted(world.plane.rows["rollout_data"]) == [
        f"p{k}_g{j}" for k in range(3) for j in range(2)
    ]
    assert "p0_g0" not in world.plane.puts  # its row came with the snapshot
    runs = controller.job.ledger["p0_g1"].runs
    assert [(run.attempt_index, run.incarnation, run.state) for run in runs] == [
        (0, 1, RunPhase.SUPERSEDED),
        (1, 2, RunPhase.FINISHED),
    ]


async def test_a_restored_job_can_be_saved_and_restored_again(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    second = saved.world(tmp_path)
    await second.controller.restore.start(RESTORE, saved.folder, saved.files)
    await second.controller.restore.discard(RESTORE)
    second.controller.start_pumps()
    await until(lambda: len(second.gym.sent) == 4)
    begun = await second.controller.saves.begin("bbbbbbbb", None)
    await second.controller.saves.close_admission("bbbbbbbb", 1)
    answer = await second.controller.saves.cut("bbbbbbbb", begun.folder, 5)
    again = Saved(second, second.config.job_folder / begun.folder, answer.files)
    third = again.world(tmp_path, 3)
    start = await third.controller.restore.start("restore-2", again.folder, again.files)
    attempts = {r.rollout_id: r.attempt_index for r in start.unfinished}
    assert attempts == {"p0_g1": 2, "p1_g0": 2, "p1_g1": 2, "p2_g0": 1}
    assert third.controller.job.ledger["p0_g1"].staging_keys == [
        "1/p0_g1/call-0",  # staged under run 0 of incarnation 1, needed by run 2 of 3
        "1/p0_g1/call-1",
    ]


async def test_who_cannot_continue_starts_over_and_its_rows_are_cleared(tmp_path: Path) -> None:
    """Invariant 8. Break: rl/records/inventories.py: do not compare revisions; seen red."""
    saved = await _saved(tmp_path, revision=4)
    world = saved.world(tmp_path)
    await world.controller.restore.start(RESTORE, saved.folder, saved.files)
    restarted = await world.controller.restore.discard(RESTORE)
    assert [(r.rollout_id, r.attempt_index) for r in restarted] == [("p0_g1", 1)]
    assert "another revision" in (restarted[0].restarted_because or "")
    assert restarted[0].last_committed_model_call_id is None
    assert world.gym.discarded == ["p0_g1"]
    assert await world.plane.keys("rollout_staging") == {"1/p0_g0/call-0", "1/p0_g0/call-1"}
    assert world.controller.start_pumps() == 3


async def test_the_pumps_wait_for_the_discards(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    with pytest.raises(ControllerLost):
        await world.controller.restore.discard(RESTORE)
    await world.controller.restore.start(RESTORE, saved.folder, saved.files)
    with pytest.raises(InvalidPhase):
        world.controller.start_pumps()
    with pytest.raises(CheckpointConflict):
        await world.controller.restore.discard("another")
    with pytest.raises(CheckpointConflict):
        await world.controller.restore.start("another", saved.folder, saved.files)
    with pytest.raises(CheckpointConflict):
        await world.controller.start_fresh(world.workload)


async def test_a_fresh_job_is_not_restored_over(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    await world.controller.start_fresh(world.workload)
    await world.controller.start_fresh(world.workload)  # repeatable
    with pytest.raises(CheckpointConflict):
        await world.controller.start_fresh(world.workload.model_copy(update={"epochs": 2}))
    with pytest.raises(CheckpointConflict):
        await world.controller.restore.start(RESTORE, saved.folder, saved.files)


@pytest.mark.parametrize(
    "file", ["rl/loader.json", "rl/replay_index.parquet", "rl/recovery_ledger.parquet"]
)
async def test_a_damaged_file_is_named_and_nothing_is_installed(tmp_path: Path, file: str) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    path = saved.folder / file
    good = path.read_bytes()
    for damage in (good[:-1] + bytes([good[-1] ^ 1]), good[:-1]):
        path.write_bytes(damage)
        with pytest.raises(DigestMismatch) as caught:
            await world.controller.restore.start(RESTORE, saved.folder, saved.files)
        assert caught.value.details["file"] == file
    path.unlink()
    with pytest.raises(DigestMismatch):
        await world.controller.restore.start(RESTORE, saved.folder, saved.files)
    unlisted = [other for other in saved.files if other.path != file]
    with pytest.raises(DigestMismatch):
        await world.controller.restore.start(RESTORE, saved.folder, unlisted)
    assert not world.controller.job.started
    path.write_bytes(good)
    await world.controller.restore.start(RESTORE, saved.folder, saved.files)  # may be repeated


async def test_a_changed_dataset_is_refused(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    path = world.workload.dataset
    path.write_text(path.read_text() + path.read_text())
    with pytest.raises(TopologyMismatch):
        await world.controller.restore.start(RESTORE, saved.folder, saved.files)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({"continuations": {AGENT: []}, "line_counts": {AGENT: 0}, "storage": {MODEL: []}}, "no"),
        ({"storage": {MODEL: []}}, "does not know"),
        ({"line_counts": {AGENT: 3}}, "status counts 3"),
        ({"sessions": {COUNTER: [SessionEntry(rollout_id="p9", attempt_index=1, revision=1)]}}, ""),
    ],
)
async def test_servers_that_hold_something_else_fail_the_start(
    tmp_path: Path, damage: dict, problem: str
) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    world.gym.answer = world.gym.answer.model_copy(update=damage)
    with pytest.raises(InventoryMismatch) as caught:
        await world.controller.restore.start(RESTORE, saved.folder, saved.files)
    assert problem in " ".join(caught.value.details["problems"])
    assert not world.controller.job.started


async def test_a_referenced_staging_row_that_is_missing_fails_the_start(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    await world.plane.clear("rollout_staging", ["1/p0_g1/call-0"])
    with pytest.raises(InventoryMismatch, match="staging row of call-0 of p0_g1 is missing"):
        await world.controller.restore.start(RESTORE, saved.folder, saved.files)


async def test_what_servers_still_hold_of_a_failed_run_is_thrown_away(tmp_path: Path) -> None:
    """p0_g1 failed and is to go out as run 1; the agent has not seen that yet."""
    world = World(tmp_path)
    await world.start()
    begun = await world.controller.saves.begin(SAVE, None)
    await world.controller.saves.close_admission(SAVE, 1)
    world.gym.runs["p0_g1", 0].set_exception(SessionUncertain("a handler raised"))
    await until(lambda: world.controller.job.ledger["p0_g1"].run.attempt_index == 1)
    world.hold("p0_g1")
    await world.plane.clear("rollout_staging", ["1/p0_g1/call-0"])
    answer = await world.controller.saves.cut(SAVE, begun.folder, 5)
    saved = Saved(world, world.config.job_folder / begun.folder, answer.files)
    restored = saved.world(tmp_path)
    start = await restored.controller.restore.start(RESTORE, saved.folder, saved.files)
    assert {r.rollout_id: r.attempt_index for r in start.unfinished}["p0_g1"] == 2
    restarted = await restored.controller.restore.discard(RESTORE)
    assert [r.rollout_id for r in restarted] == ["p0_g1"]
    assert restored.gym.discarded == ["p0_g1"]


async def test_two_starts_of_one_restore_at_the_same_time_are_one(tmp_path: Path) -> None:
    saved = await _saved(tmp_path)
    world = saved.world(tmp_path)
    answers = await asyncio.gather(
        *(world.controller.restore.start(RESTORE, saved.folder, saved.files) for _ in range(2))
    )
    assert answers[0] == answers[1]
    assert world.controller.job.ledger["p0_g1"].run.attempt_index == 1
