"""Snapshots over time: named ones, pruning, other lines, saves in a row (issue 3).

One stack with the scripted policy and one job that never comes to its end. It is saved many
times, taken back to an older snapshot, loses its controller and a Gym server before and after
the first save of its new line, and goes back to the old line once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from temporalio.client import Client

from activities.contract import TASK_QUEUE, RestoreResult, SaveInput, SaveResult
from rl.snapshots import incarnations
from tests.real.live import AGENT, JOB, MODEL, Live, wait_for
from tests.real.saves_in_a_row import SavesInARow, saves_in_a_row

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
BASE = 29_000
SAVES = 20
HUNDRED = 100
KEPT = 2
NAMED = "before-lr-change"
OPTIONS = {
    "policy": {"delay-s": "0.25", "turns": "7", "turns-spread": "4"},
    AGENT: {"max-steps": "14"},
}


@dataclass(frozen=True)
class Saved:
    """A save, and what it saved of the unfinished rollouts."""

    result: SaveResult
    staged: set[str]
    """Keys of the TransferQueue rows that it needs."""

    @property
    def snapshot(self) -> str:
        assert self.result.snapshot is not None
        return self.result.snapshot


@dataclass(frozen=True)
class Story:
    """Everything that the tests look at, from the one run of this module."""

    live: Live
    row: SavesInARow
    named: str
    older: str
    newer: str
    before_any_save: list[RestoreResult]
    """The restore of the older one, and that of `latest` after a crash: both from one snapshot."""
    right_after: Saved
    after_that: RestoreResult
    later: Saved
    back: RestoreResult
    """Of the newer one of the old line."""
    inspected: dict[str, Any]
    """The manifest of `latest` from then on."""
    listed: dict[str, str]
    """Line of each snapshot."""
    pruned: dict[str, Any]
    left: list[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run it once."""
    live = Live(tmp_path_factory.mktemp("over_time"), OPTIONS, port_base=BASE, keep_latest_k=KEPT)
    try:
        live.up()
        _run(live)
        named = live.cli("save", "--name", NAMED)["snapshot"]
        row = asyncio.run(saves_in_a_row(live, SAVES))
        newer, older, *_ = live.snapshots.snapshots()

        first = _restored(live, "--to", older, "--replace")
        _turns(live)
        _lose(live)
        second, right_after = asyncio.run(_restore_and_save_at_once(live))
        _lose(live)
        third = _restored(live)
        _turns(live)
        later = _saved(live, SaveResult.model_validate(live.cli("save")))

        back = _restored(live, "--to", newer, "--replace")
        inspected = live.cli("inspect")
        listed = {row["snapshot"]: row["line"] for row in live.cli("list")}
        pruned = live.cli("prune", "--other-lines")
        yield Story(
            live=live,
            row=row,
            named=named,
            older=older,
            newer=newer,
            before_any_save=[first, second],
            right_after=right_after,
            after_that=third,
            later=later,
            back=back,
            inspected=inspected,
            listed=listed,
            pruned=pruned,
            left=live.snapshots.snapshots(),
        )
    finally:
        live.down()


def _run(live: Live, inflight: int = 10) -> None:
    live.cli("run", "--epochs", "400", "--max-inflight", str(inflight), "--detach")
    _turns(live)


def _turns(live: Live) -> None:
    before = live.mutations()
    wait_for(lambda: live.mutations() >= before + 20, "a turn of each rollout")


def _restored(live: Live, *words: str) -> RestoreResult:
    return RestoreResult.model_validate(live.cli("restore", *words))


def _lose(live: Live) -> None:
    """SIGKILL to the controller and a Gym server: what they held in memory is gone."""
    doomed = [live.actor("SingleController"), *live.pids(MODEL)]
    for process in doomed:
        process.kill()
    wait_for(lambda: not any(process.is_running() for process in doomed), "their end")


async def _restore_and_save_at_once(live: Live) -> tuple[RestoreResult, Saved]:
    """The save begins while the restored rollouts are being sent again."""
    client = await live.client()
    restoring = asyncio.create_task(asyncio.to_thread(_restored, live))
    try:
        await _resumes(live, incarnation=3)
        saved = await _first_save_that_is_agreed_to(client)
    finally:
        restored = await restoring
    return restored, _saved(live, saved)


async def _resumes(live: Live, *, incarnation: int) -> None:
    await asyncio.to_thread(
        wait_for,
        lambda: incarnations.origin(live.snapshots.path, incarnation) is not None,
        "the first resume",
        60,
    )


async def _first_save_that_is_agreed_to(client: Client) -> SaveResult:
    for number in range(200):
        given = SaveInput(job_id=JOB, trigger="scheduled")
        handle = await client.start_workflow(
            "SaveSnapshot", given, id=f"{JOB}/save/at-once-{number}", task_queue=TASK_QUEUE
        )
        result = SaveResult.model_validate(await handle.result())
        if result.snapshot is not None:
            return result
        assert (result.reason or "").startswith(("restore_not_finished", "server_unfit")), result
    raise AssertionError("no save was agreed to")


def _saved(live: Live, result: SaveResult) -> Saved:
    assert result.snapshot is not None
    index = live.snapshots.path / result.snapshot / "gym" / MODEL / "token_storage_index.parquet"
    return Saved(result, set(pq.read_table(index)["key"].to_pylist()))


def _runs(restored: RestoreResult) -> dict[str, int]:
    return {rollout.rollout_id: rollout.attempt_index for rollout in restored.continued}


def _calls(keys: set[str]) -> dict[str, set[str]]:
    """Incarnation -> what follows it in the keys of its model calls."""
    found: dict[str, set[str]] = {}
    for key in keys:
        incarnation, _, call = key.partition("/")
        found.setdefault(incarnation, set()).add(call)
    return found


# --- saves in a row ---------------------------------------------------------------------------


def test_every_save_in_a_row_is_published_under_the_next_number(story: Story) -> None:
    names = [saved.snapshot for saved in story.row.saved]
    assert names == [f"snapshot_{number:06d}" for number in range(2, SAVES + 2)]


def test_after_each_save_the_newest_and_the_named_one_are_there_and_nothing_else(
    story: Story,
) -> None:
    for saved, names in zip(story.row.saved, story.row.folders, strict=True):
        published = [f"snapshot_{number:06d}" for number in range(2, SAVES + 2)]
        newest = published[: published.index(str(saved.snapshot)) + 1][-KEPT:]
        assert names == [story.named, *newest]
    assert [name for saved in story.row.saved for name in saved.pruned] == [
        f"snapshot_{number:06d}" for number in range(2, SAVES + 2 - KEPT)
    ]


def test_the_last_saves_pause_the_job_no_longer_than_the_first(story: Story) -> None:
    assert story.row.slower(of=SAVES // 2) < 2


def test_servers_and_actors_keep_nothing_of_the_saves_that_are_over(story: Story) -> None:
    _assert_bounded(story.row, since=SAVES // 4)


def _assert_bounded(row: SavesInARow, since: int) -> None:
    """Memory of the process alone would not show ids: `test_many_saves.py` of both rooms does."""
    for status in row.statuses.values():
        assert status.checkpoint_id is None
        assert status.counts.running + status.counts.parked <= 10
    for name, mib in row.grown(since).items():
        assert mib < 48, f"{name} has grown by {mib} MiB"


@pytest.mark.long
def test_a_hundred_saves_in_a_row_cost_the_hundredth_no_more_than_the_first(
    tmp_path: Path,
) -> None:
    """Two rollouts at once: every row that they leave is in each later snapshot, by design."""
    live = Live(tmp_path, OPTIONS, port_base=BASE + 200, keep_latest_k=KEPT)
    try:
        live.up()
        _run(live, inflight=2)
        row = asyncio.run(saves_in_a_row(live, HUNDRED))
    finally:
        live.down()
    assert all(len(names) <= KEPT for names in row.folders)
    assert row.slower(of=20) < 1.5
    _assert_bounded(row, since=20)
    row.write(of=20)


# --- named ones -------------------------------------------------------------------------------


def test_a_named_one_outlives_every_prune_and_is_found_by_its_name(story: Story) -> None:
    assert story.named in story.left
    found = story.live.cli("verify", NAMED)
    assert (found["snapshot"], found["intact"]) == (story.named, True)


def test_the_one_restored_from_goes_when_the_line_has_enough_newer_ones(story: Story) -> None:
    assert story.right_after.result.pruned == []
    assert story.later.result.pruned == [story.older]


# --- the current line -------------------------------------------------------------------------


def test_a_crash_before_the_first_save_of_a_new_line_goes_back_to_where_it_began(
    story: Story,
) -> None:
    first, second = story.before_any_save
    assert story.newer > story.older
    assert (first.snapshot, second.snapshot) == (story.older, story.older)


def test_two_restores_of_one_snapshot_give_the_same_runs_distinguished_by_incarnation(
    story: Story,
) -> None:
    first, second = story.before_any_save
    assert (first.incarnation, second.incarnation) == (2, 3)
    assert _runs(first) == _runs(second)
    assert set(_runs(second).values()) == {1}


def test_no_row_of_the_life_that_came_to_nothing_is_in_the_next(story: Story) -> None:
    """Both made the same calls under the same runs; incarnation 2 made them first."""
    staged = _calls(story.later.staged)
    assert set(staged) <= {"1", "3", "4"}
    assert staged["4"], "the rollouts went on"


def test_a_save_right_after_a_restore_holds_what_the_restore_brought_back(story: Story) -> None:
    restored, saved = story.before_any_save[1], story.right_after
    manifest = story.live.snapshots.verify(story.newer)
    assert saved.snapshot > manifest.snapshot
    assert saved.result.incarnation == restored.incarnation
    assert set(_calls(saved.staged)) <= {"1", "3"}
    again = _runs(story.after_that)
    assert {name: run for name, run in again.items() if name in _runs(restored)} == {
        name: 2 for name in _runs(restored) if name in again
    }
    assert again


def test_after_a_crash_the_newest_of_the_new_line_is_taken(story: Story) -> None:
    assert story.after_that.snapshot == story.right_after.snapshot
    assert story.after_that.skipped == []


def test_back_on_the_old_line_a_newer_number_of_the_other_one_is_not_taken(story: Story) -> None:
    assert story.later.snapshot > story.newer
    assert story.back.snapshot == story.newer
    assert story.inspected["snapshot"] == story.newer


def test_snapshots_of_another_line_stay_until_they_are_asked_for(story: Story) -> None:
    others = [story.later.snapshot, story.right_after.snapshot]
    lines = dict.fromkeys(others, "other") | dict.fromkeys((story.newer, story.named), "current")
    assert story.listed == lines
    assert story.pruned["removed"] == others
    assert story.left == story.pruned["kept"] == [story.newer, story.named]
