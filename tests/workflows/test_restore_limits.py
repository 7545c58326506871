"""Time limits of a restore's activities, without a server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from unittest.mock import Mock

import pytest

from activities.contract import RestoreInput
from activities.contract.restore import ClaimResult, DiscoverResult
from workflows.journal import Journal
from workflows.restore_snapshot import RestoreSnapshot


async def test_a_wait_for_servers_of_any_length_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names who is missing then. Break: workflows/restore_snapshot.py: allow ten minutes."""
    restore = RestoreSnapshot()
    restore._journal = cast(Journal, Mock(Journal))
    restore._restore, restore._id = RestoreInput(job_id="demo"), "r" * 8
    restore._claimed = ClaimResult(incarnation=2, schedule_was_running=True, restore_wait_s=3600)
    limits: list[timedelta] = []

    async def row(_: str, __: Any, ___: Any, limit: timedelta) -> DiscoverResult:
        limits.append(limit)
        return DiscoverResult(servers=[], ms=0)

    monkeypatch.setattr(restore, "_row", row)
    await restore._discover_capabilities()
    assert limits[0] > timedelta(seconds=3600)
