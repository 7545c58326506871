"""The save that a SIGTERM asks for: it says what came of it, within the grace period."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from activities.contract import PhaseReport, Progress, SaveOutcome, SaveResult
from rl.snapshots.folder import SnapshotFolder
from workers.config.settings import Settings
from workers.job import commands as job_runs
from workers.job.commands import NotNow
from workers.job.workflows import OnProgress, WorkflowFailed
from workers.supervisor.last_save import last_save

PUBLISHED = SaveResult(outcome=SaveOutcome.PUBLISHED, checkpoint_id="c", snapshot="snapshot_000004")


def saves(
    monkeypatch: pytest.MonkeyPatch, *outcomes: SaveResult | Exception | None, starts: bool = True
) -> None:
    """Outcomes of the saves, one after the other; None: the save never ends, or never starts."""
    left = list(outcomes)

    async def save(*words: Any) -> SaveResult:
        outcome = left.pop(0)
        if not starts:
            await asyncio.Event().wait()
        started: Callable[[str], None] = words[3]
        started("demo/save/x")
        if outcome is None:
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    monkeypatch.setattr(job_runs, "save", save)


async def test_a_save_that_publishes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    saves(monkeypatch, PUBLISHED)
    saved = await last_save(settings, 5, lambda _: None)
    assert (saved.outcome, saved.snapshot) == ("published", "snapshot_000004")


async def test_unchanged_is_fine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    saves(monkeypatch, NotNow("unchanged", "nothing changed"))
    assert (await last_save(settings, 5, lambda _: None)).outcome == "unchanged"


async def test_a_save_that_runs_already_is_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: take any refusal for the answer."""
    saves(monkeypatch, NotNow("checkpoint_running", "one runs"), PUBLISHED)
    assert (await last_save(settings, 5, lambda _: None)).outcome == "published"


async def test_the_grace_period_is_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves(monkeypatch, None)
    began = time.monotonic()
    saved = await last_save(settings, 0.2, lambda _: None)
    assert time.monotonic() - began < 2
    assert saved.outcome == "not_finished"
    assert "goes on in Temporal" in (saved.reason or "")


@pytest.mark.parametrize(("phase", "told"), [("publish_snapshot", True), ("cut_rl_state", False)])
async def test_a_snapshot_that_is_there_is_told_though_the_save_still_prunes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, phase: str, told: bool
) -> None:
    """Deleting old ones may take long. Break: workers/supervisor/last_save.py.

    Wait for it in any case.
    """

    async def save(
        _: Any, __: Any, on_progress: OnProgress, started: Callable[[str], None]
    ) -> None:
        started("demo/save/x")
        on_progress(Progress(phase=None, done=[PhaseReport(phase=phase, ms=1)]))
        await asyncio.Event().wait()

    monkeypatch.setattr(job_runs, "save", save)
    monkeypatch.setattr(SnapshotFolder, "snapshots", lambda _: ["snapshot_000004"])
    saved = await last_save(settings, 0.1, lambda _: None)
    assert saved.outcome == ("published" if told else "not_finished")
    assert saved.snapshot == "snapshot_000004"


async def test_a_save_that_never_started_does_not_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: take the end of the grace period for a save that is under way."""
    saves(monkeypatch, None, starts=False)
    saved = await last_save(settings, 0.1, lambda _: None)
    assert saved.outcome == "none"
    assert saved.reason == "no save could be started within 0.1 s"


async def test_a_save_that_was_refused_until_the_end_does_not_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: remember the save that was refused as the one that is under way."""
    saves(monkeypatch, NotNow("checkpoint_running", "one runs"))
    assert (await last_save(settings, 0.1, lambda _: None)).outcome == "none"


async def test_a_save_that_fails_says_why(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves(monkeypatch, WorkflowFailed("deadline_exceeded", "counter is not ready", "demo/save/1"))
    saved = await last_save(settings, 5, lambda _: None)
    assert saved.outcome == "failed"
    assert "counter is not ready" in (saved.reason or "")


async def test_no_grace_no_save(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    saves(monkeypatch)
    assert (await last_save(settings, 0, lambda _: None)).outcome == "none"
