"""Stands for `activities.driving.driving`: no heartbeat, no lease."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from activities.driving import PhaseClock


@asynccontextmanager
async def not_driven(*_: Any, **__: Any) -> AsyncIterator[PhaseClock]:
    yield PhaseClock(None)
