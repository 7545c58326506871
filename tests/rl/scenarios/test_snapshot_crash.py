"""Publishing is all or nothing, whatever dies or interferes at whichever durable step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gym.protocol import NotWritten, WrittenFile
from rl.errors import FolderError, Unpublished
from rl.snapshots.folder import Reserved, SnapshotFolder
from rl.snapshots.manifest import SnapshotManifest
from rl.snapshots.names import JobFolder, number_of
from rl.snapshots.prune import prune
from tests.rl.folder_cases import (
    FIRST,
    SECOND,
    at_each_step,
    config_of,
    crash_points,
    manifest_of,
    save,
    start_job,
    write_files,
)

pytestmark = pytest.mark.real
NEXT = "dddddddd-4"


class Case:
    """A job with one snapshot and one checkpoint ready to be published."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.folder = SnapshotFolder(config_of(root, key=b"key"))
        start_job(config_of(root))
        save(self.folder, FIRST)
        self.reserved: Reserved = self.folder.reserve(SECOND, 1)
        self.files: list[WrittenFile] = write_files(self.folder.path / self.reserved.tmp)

    def publish(self) -> SnapshotManifest:
        manifest = manifest_of(self.reserved, SECOND)
        return self.folder.publish(self.reserved.tmp, self.reserved.snapshot, manifest, self.files)

    def intact(self) -> list[str]:
        """Every `snapshot_*` verifies; their names."""
        for name in self.folder.snapshots():
            self.folder.verify(name)
        return self.folder.snapshots()

    def leftovers(self) -> list[str]:
        return sorted(
            path.name
            for path in self.folder.path.iterdir()
            if path.name not in ("incarnations", *self.folder.snapshots())
        )


def test_a_publish_that_dies_at_each_durable_step_is_all_or_nothing(tmp_path: Path) -> None:
    """Invariant 1. Break: rl/snapshots/folder.py: rename, then write the manifest; seen red."""
    points = 0
    cases = [Case(tmp_path / "0")]
    seen = set()
    for step, moment in crash_points(lambda: cases[-1].publish()):
        case = cases[-1]
        names = case.intact()
        assert "snapshot_000001" in names, (step, moment)
        seen.add(len(names))
        assert (case.folder.find_published(SECOND) is None) == (len(names) == 1)
        case.publish()  # the other worker
        assert case.intact() == ["snapshot_000002", "snapshot_000001"], (step, moment)
        points += 1
        cases.append(Case(tmp_path / str(points)))
    assert seen == {1, 2}, "crashes on both sides of the rename"
    assert points > 20


def test_a_publish_that_dies_is_discarded_whole_unless_it_was_published(tmp_path: Path) -> None:
    points = 0
    cases = [Case(tmp_path / "0")]
    for step, moment in crash_points(lambda: cases[-1].publish()):
        case = cases[-1]
        trashed = case.folder.discard(SECOND)
        published = case.folder.find_published(SECOND)
        assert (published is None) == (len(trashed) == 1), (step, moment)
        assert len(case.intact()) == (1 if published is None else 2)
        case.folder.reserve("cccccccc-3", 1)
        assert case.leftovers() == ["tmp_snapshot_000003-cccccccc"], (step, moment)
        points += 1
        cases.append(Case(tmp_path / str(points)))
    assert points > 20


def test_a_slow_reserve_leaves_the_next_saves_folder_alone(tmp_path: Path) -> None:
    """The save that reserves has ended meanwhile, and the next one reserves at each of its steps.

    Break: sweep every other folder, and the next save fails though nothing is lost.
    """
    points = 0
    while (following := _reserve_at(Case(tmp_path / str(points)), points)) is not None:
        case, reserved = following
        assert (case.folder.path / reserved.tmp).is_dir(), points
        files = write_files(case.folder.path / reserved.tmp)
        case.folder.publish(reserved.tmp, reserved.snapshot, manifest_of(reserved, NEXT), files)
        assert reserved.snapshot in case.intact(), points
        points += 1
    assert points > 5


def _reserve_at(case: Case, point: int) -> tuple[Case, Reserved] | None:
    """Reserve for a save that ends, with the next save's whole reserve before step `point`."""
    found: list[Reserved] = []

    def before(number: int) -> None:
        if number == point:
            found.append(case.folder.reserve(NEXT, 1))

    # The next save may have cleared away what the slow one was building: that one has ended.
    with at_each_step(before, lambda _: None), contextlib.suppress(FolderError, NotWritten):
        case.folder.reserve("cccccccc-3", 1)
    case.folder.discard("cccccccc-3")
    return (case, found[0]) if found else None


def test_a_prune_at_the_same_time_takes_nothing_out_of_what_is_reserved(tmp_path: Path) -> None:
    """Break: rl/snapshots/names.py: build the folder as trash, which a prune empties meanwhile."""
    for point in range(100):
        case, met = Case(tmp_path / str(point)), []

        def before(number: int, at: int = point, case: Case = case, met: list[int] = met) -> None:
            if number == at:
                met.append(number)
                JobFolder(case.folder.path).empty_trash()

        with at_each_step(before, lambda _: None):
            reserved = case.folder.reserve("cccccccc-3", 1)
        parts = sorted(path.name for path in (case.folder.path / reserved.tmp).iterdir())
        assert parts == ["data_plane", "gym", "rl"], point
        if not met:
            break
    assert 5 < point < 99


def test_a_slow_reserve_removes_no_manifest_that_is_being_written(tmp_path: Path) -> None:
    """Break: remove every stray file."""
    case = Case(tmp_path / "0")
    slow = JobFolder(case.folder.path)
    below = number_of(case.reserved.tmp) - 1
    with at_each_step(lambda _: slow.remove_stray_files(below), lambda _: None):
        case.publish()
    assert case.intact() == ["snapshot_000002", "snapshot_000001"]


def _interfere(case: Case, deed: Callable[[], object], at: int) -> object:
    """Publish, with the whole of `deed` happening before the `at`-th durable step."""
    state = {"done": False, "steps": 0}

    def before(number: int) -> None:
        state["steps"] = number
        if number == at and not state["done"]:
            state["done"] = True
            deed()

    try:
        with at_each_step(before, lambda _number: None):
            return case.publish()
    except Unpublished as refusal:
        return refusal
    finally:
        if not state["done"]:
            raise StopIteration


def _each_step(tmp_path: Path, deed: Callable[[Case], object]) -> list[tuple[Case, object]]:
    outcomes = []
    for at in range(1000):
        case = Case(tmp_path / str(at))
        try:
            outcomes.append((case, _interfere(case, lambda case=case: deed(case), at)))
        except StopIteration:
            return outcomes
    raise AssertionError("it never ends")


def test_of_publish_and_discard_the_first_rename_decides(tmp_path: Path) -> None:
    outcomes = _each_step(tmp_path, lambda case: case.folder.discard(SECOND))
    assert len(outcomes) > 10
    refused = [isinstance(answer, Unpublished) for _, answer in outcomes]
    assert refused == sorted(refused, reverse=True) and set(refused) == {True, False}
    for case, answer in outcomes:
        published = case.folder.find_published(SECOND) is not None
        assert published == (not isinstance(answer, Unpublished))
        assert len(case.intact()) == (2 if published else 1)


def test_a_discard_that_lists_the_folder_and_loses_the_rename_says_so(tmp_path: Path) -> None:
    for deed in ("publish", "discard"):
        case = Case(tmp_path / deed)
        answers: list[object] = []

        def first(case: Case = case, deed: str = deed, answers: list[object] = answers) -> None:
            answers.append(case.publish() if deed == "publish" else case.folder.discard(SECOND))

        begun: list[int] = []

        def before(
            number: int, first: Callable[[], None] = first, begun: list[int] = begun
        ) -> None:
            if not begun:  # the first step of discard is its rename
                begun.append(number)
                first()

        with at_each_step(before, lambda _number: None):
            assert case.folder.discard(SECOND) == []
        assert len(answers) == 1
        assert (case.folder.find_published(SECOND) is None) == (deed == "discard")


def test_two_workers_that_publish_at_the_same_time_both_answer_the_one_snapshot(
    tmp_path: Path,
) -> None:
    outcomes = _each_step(tmp_path, lambda case: case.publish())
    assert len(outcomes) > 10
    for case, answer in outcomes:
        assert isinstance(answer, SnapshotManifest)
        assert case.intact() == ["snapshot_000002", "snapshot_000001"]
        assert case.leftovers() == []


def test_a_reserve_that_dies_at_each_durable_step_is_repeated(tmp_path: Path) -> None:
    points = 0
    cases = [Case(tmp_path / "0")]
    for step, moment in crash_points(lambda: cases[-1].folder.reserve("cccccccc-3", 1)):
        case = cases[-1]
        assert case.intact() == ["snapshot_000001"]
        reserved = case.folder.reserve("cccccccc-3", 1)
        files = write_files(case.folder.path / reserved.tmp)
        manifest = manifest_of(reserved, "cccccccc-3")
        case.folder.publish(reserved.tmp, reserved.snapshot, manifest, files)
        case.folder.reserve("dddddddd-4", 1)
        assert len(case.leftovers()) == 1, (step, moment, case.leftovers())
        points += 1
        cases.append(Case(tmp_path / str(points)))
    assert points > 10


def test_a_prune_that_dies_at_each_durable_step_leaves_only_whole_snapshots(
    tmp_path: Path,
) -> None:
    def build(number: int) -> SnapshotFolder:
        root = tmp_path / str(number)
        root.mkdir()
        folder = SnapshotFolder(config_of(root))
        start_job(config_of(root))
        for digit in range(4):
            save(folder, f"{digit}" * 8)
        return folder

    points = 0
    folders = [build(0)]
    for step, moment in crash_points(lambda: prune(folders[-1], 2)):
        folder = folders[-1]
        for name in folder.snapshots():
            folder.verify(name)
        assert prune(folder, 2).kept == ["snapshot_000004", "snapshot_000003"], (step, moment)
        names = {path.name for path in folder.path.iterdir()}
        assert names == {"snapshot_000004", "snapshot_000003", "incarnations"}
        points += 1
        folders.append(build(points))
    assert points > 4
