"""A supervisor with given observations; the starts that it asks for are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.contract import RestoreResult
from rl.config import Workload
from tests.workers.observations import cluster_view, observation, status
from workers.config.settings import Settings
from workers.job import commands as job_runs
from workers.job.ray_client import JobWatch
from workers.job.restarts import Restarter
from workers.stack.stack import Stack
from workers.supervisor.decide import Observation
from workers.supervisor.event_log import EventLog
from workers.supervisor.observe import Observer
from workers.supervisor.supervisor import Supervisor

LOST = observation(gone={"counter"})


FINISHED = observation(job=cluster_view(status("finished", incarnation=9)))


class Given:
    """A supervisor with given looks; what it starts is written down."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.began: list[dict[str, Any]] = []
        self.started: list[tuple[str, ...]] = []
        self.outcomes: list[Exception | None] = []
        self.event_log = EventLog(settings.state_dir / "logs", self.told.append)
        self.has_snapshot = True

        async def begin(*_: Any, **options: Any) -> job_runs.Begun:
            self.began.append(options)
            error = self.outcomes.pop(0) if self.outcomes else None
            if error is not None:
                raise error
            restored = RestoreResult(
                restore_id="r",
                incarnation=9,
                snapshot="snapshot_000007",
                finished_rollouts=0,
                continued=[],
            )
            return job_runs.Begun(incarnation=9, restored=None if options["fresh"] else restored)

        async def restart(_: Restarter, *names: str, missing: bool = False, **__: Any) -> None:
            self.started.append((*names, *(["what is missing"] if missing else [])))

        monkeypatch.setattr(job_runs, "begin", begin)
        monkeypatch.setattr(job_runs, "has_snapshot_on_line", lambda _: self.has_snapshot)
        monkeypatch.setattr(Restarter, "restart", restart)
        monkeypatch.setattr(Stack, "gone", lambda _: {"worker_1"})
        self._monkeypatch = monkeypatch
        self._settings = settings

    async def run(self, look: Callable[[bool], Observation]) -> Any:
        """Run on observations that depend on whether a recovery is under way."""

        async def given(
            _: Observer, __: Any, ___: int, *, recovering: bool, starting: Collection[str]
        ) -> Observation:
            await asyncio.sleep(0.001)
            seen = look(recovering)
            return replace(seen, gone=seen.gone.difference(starting))

        self._monkeypatch.setattr(Observer, "observe", given)
        return await Supervisor(
            self._settings,
            Workload(dataset=Path("/rows.jsonl")),
            3,
            JobWatch(self._settings),
            self.event_log,
            lambda _: None,
            lambda _: None,
        ).run()


def in_turn(given: Given, looks: Iterator[Observation]) -> Callable[[bool], Observation]:
    """The next look once what the last one led to is over."""
    return lambda recovering: observation(recovering=True, newest=4) if recovering else next(looks)
