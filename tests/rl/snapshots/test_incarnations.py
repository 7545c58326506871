"""Claims of incarnations, and the snapshots they come from."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from rl.errors import IncarnationDamaged, OriginConflict, SnapshotDamaged, Superseded
from rl.snapshots import incarnations
from rl.snapshots.folder import SnapshotFolder
from rl.snapshots.prune import prune
from tests.rl.folder_cases import FIRST, SECOND, config_of, crash_points, save, start_job


def _claim_at_once(
    folder: Path, run_id: str, start: Barrier, answers: multiprocessing.Queue
) -> None:
    start.wait()
    try:
        answers.put((run_id, incarnations.claim(folder, {"run_id": run_id}, after=0)))
    except Superseded:
        answers.put((run_id, None))


@pytest.mark.parametrize("claimants", [["a", "b", "c", "d"], ["a", "a", "a", "b"]])
def test_claimed_at_once_by_several_processes_exactly_one_owner_gets_it(
    tmp_path: Path, claimants: list[str]
) -> None:
    fork = multiprocessing.get_context("fork")
    for round_ in range(5):
        folder = tmp_path / str(round_)
        start, answers = fork.Barrier(len(claimants)), fork.Queue()
        processes = [
            fork.Process(target=_claim_at_once, args=(folder, run_id, start, answers))
            for run_id in claimants
        ]
        for process in processes:
            process.start()
        outcomes = [answers.get(timeout=20) for _ in claimants]
        for process in processes:
            process.join(20)
        winners = {run_id for run_id, number in outcomes if number is not None}
        assert len(winners) == 1
        (winner,) = winners
        assert all(number == (1 if run_id == winner else None) for run_id, number in outcomes)
        record = json.loads((folder / "incarnations" / "1.json").read_bytes())
        assert record["owner"] == {"run_id": winner}
        assert incarnations.newest(folder) == 1


def test_a_claim_dies_at_each_durable_step_and_its_repeat_gets_the_same_number(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "0"]
    for step, moment in crash_points(lambda: incarnations.claim(folders[-1], {"run_id": "me"})):
        folder = folders[-1]
        assert incarnations.newest(folder) in (0, 1), (step, moment)
        assert incarnations.claim(folder, {"run_id": "me"}) == 1, (step, moment)
        assert incarnations.owned_by(folder, "me") == 1
        folders.append(tmp_path / str(len(folders)))
    assert len(folders) > 6


def test_a_repeat_recognises_its_own_claim_until_a_newer_one_exists(tmp_path: Path) -> None:
    assert incarnations.newest(tmp_path) == 0
    assert incarnations.claim(tmp_path, {"run_id": "a"}) == 1
    assert incarnations.claim(tmp_path, {"run_id": "a"}) == 1
    assert incarnations.claim(tmp_path, {"run_id": "b"}) == 2
    with pytest.raises(Superseded):
        incarnations.claim(tmp_path, {"run_id": "a"})
    assert incarnations.newest(tmp_path) == 2


def test_a_claimant_that_looked_at_an_older_incarnation_touches_nothing(tmp_path: Path) -> None:
    incarnations.claim(tmp_path, {"run_id": "a"})
    incarnations.claim(tmp_path, {"run_id": "b"})
    before = sorted(path.name for path in (tmp_path / "incarnations").iterdir())
    with pytest.raises(Superseded):
        incarnations.claim(tmp_path, {"run_id": "c"}, after=1)
    assert sorted(path.name for path in (tmp_path / "incarnations").iterdir()) == before


def test_an_owner_without_a_run_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run_id"):
        incarnations.claim(tmp_path, {"workflow_id": "w"})


def test_a_damaged_claim_counts_by_its_name_and_blocks_no_later_one(tmp_path: Path) -> None:
    incarnations.claim(tmp_path, {"run_id": "a"})
    (tmp_path / "incarnations" / "1.json").write_bytes(b"{")
    assert incarnations.claim(tmp_path, {"run_id": "b"}) == 2


def test_an_origin_is_named_once_and_only_by_the_newest(tmp_path: Path) -> None:
    incarnations.claim(tmp_path, {"run_id": "a"})
    incarnations.record_origin(tmp_path, 1, None)
    incarnations.record_origin(tmp_path, 1, None)
    (tmp_path / "snapshot_000001").mkdir()
    with pytest.raises(SnapshotDamaged):
        incarnations.record_origin(tmp_path, 1, "snapshot_000001")
    incarnations.claim(tmp_path, {"run_id": "b"})
    with pytest.raises(Superseded):
        incarnations.record_origin(tmp_path, 1, None)


def test_another_origin_for_the_same_incarnation_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    folder = SnapshotFolder(config)
    start_job(config)
    name = save(folder, FIRST)
    with pytest.raises(OriginConflict):
        incarnations.record_origin(config.job_folder, 1, name)


def test_a_damaged_origin_is_named(tmp_path: Path) -> None:
    incarnations.claim(tmp_path, {"run_id": "a"})
    (tmp_path / "incarnations" / "1.from.json").write_bytes(b"{}")
    with pytest.raises(IncarnationDamaged, match=r"1\.from\.json"):
        incarnations.current_line(tmp_path)


def test_the_line_follows_the_snapshots_that_incarnations_came_from(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    folder = SnapshotFolder(config)
    start_job(config)
    first, second = save(folder, FIRST), save(folder, SECOND)
    start_job(config, first)
    third = save(folder, "cccccccc-3", incarnation=2)
    assert folder.candidates("latest") == [third, first], "the second is on an abandoned branch"
    assert folder.candidates(second) == [second, first]

    incarnations.claim(config.job_folder, {"run_id": "a restore that never resumed"})
    assert folder.candidates("latest") == [third, first], "it has no line of its own"

    start_job(config, None)
    assert incarnations.current_line(config.job_folder).holds(4, 4)
    assert not incarnations.current_line(config.job_folder).holds(2, 3), "--fresh has no parent"


def test_the_line_survives_the_deletion_of_the_snapshot_it_branched_off(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    folder = SnapshotFolder(config)
    start_job(config)
    first, second = save(folder, FIRST, name="keep"), save(folder, SECOND)
    start_job(config, second)
    third = save(folder, "cccccccc-3", incarnation=2)
    prune(folder, 1)
    assert folder.snapshots() == [third, first]
    assert folder.candidates("latest") == [third, first]
