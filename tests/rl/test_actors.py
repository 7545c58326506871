"""Joining Ray."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import ray

from rl import actors


async def test_calls_that_meet_an_attach_under_way_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[float] = []

    def init(**_: Any) -> None:
        time.sleep(0.2)
        joined.append(time.monotonic())

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(joined))
    monkeypatch.setattr(actors, "_demand_listener", lambda address: None)
    await asyncio.gather(*(actors.attached() for _ in range(4)))
    assert len(joined) == 1
