"""Following a job from outside: looks are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from rl.messages import ControllerStatus
from rl.snapshots import incarnations
from tests.workers.observations import cluster_view, status
from workers.config.settings import Settings, load_settings
from workers.errors import NotRunning
from workers.job import follow as following
from workers.job.cluster_view import ClusterView
from workers.job.follow import follow_to_the_end


class Looks:
    """Stands for `JobWatch`: each look is the next of a list; the last one stays."""

    def __init__(self, looks: list[ClusterView | None]) -> None:
        self._looks: Iterator[ClusterView | None] = iter(looks)
        self._last = looks[-1]

    @property
    def seen(self) -> ClusterView | None:
        return next(self._looks, self._last)

    async def __aenter__(self) -> Looks:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.001)
    return load_settings(state_dir=tmp_path, snapshot_root=tmp_path, restore_wait_s=0.05)


async def follow(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *looks: ClusterView | None
) -> tuple[ControllerStatus, list[str]]:
    told: list[str] = []
    monkeypatch.setattr(following, "JobWatch", lambda _: Looks(list(looks)))
    end = await follow_to_the_end(settings, lambda _: None, told.append)
    return end, told


async def test_it_ends_with_the_job(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [None, cluster_view(status()), cluster_view(status("finished"))]
    end, told = await follow(settings, monkeypatch, *looks)
    assert (end.state, told) == ("finished", [])


async def test_a_restore_does_not_end_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: end when the controller is gone."""
    restored = [
        cluster_view(status("restored", incarnation=4)),
        cluster_view(status("finished", 4)),
    ]
    looks = [cluster_view(status()), cluster_view(None), None, *restored]
    end, told = await follow(settings, monkeypatch, *looks)
    assert (end.state, end.incarnation) == ("finished", 4)
    assert told == [
        "lost; waiting 0.05 s for a restore",
        "it lives again, as incarnation 4",
    ]


async def test_a_job_that_is_not_brought_back_is_gone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotRunning, match="was not brought back"):
        await follow(settings, monkeypatch, cluster_view(status()), cluster_view(None))


async def test_a_job_that_has_failed_ends_it_unless_it_is_restored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, _ = await follow(
        settings, monkeypatch, cluster_view(status()), cluster_view(status("failed"))
    )
    assert end.state == "failed"


async def test_without_a_job_it_says_how_to_start_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotRunning, match="turnpoint run"):
        await follow(settings, monkeypatch, None, cluster_view(None))


async def test_a_restore_that_is_under_way_at_the_first_look_is_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: take a job without a controller for none."""
    owner = {"workflow_id": "demo/restore/x", "run_id": "r"}
    incarnations.claim(settings.snapshot_place().job_folder, owner)
    restored = [cluster_view(status("running", 1)), cluster_view(status("finished", 1))]
    end, told = await follow(settings, monkeypatch, None, cluster_view(None), None, *restored)
    assert end.state == "finished"
    assert told == [
        "incarnation 1 is being restored; waiting 0.05 s for it",
        "it lives again, as incarnation 1",
    ]
    with pytest.raises(NotRunning, match="was not brought back"):
        await follow(settings, monkeypatch, cluster_view(None))
