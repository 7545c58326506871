"""Closing what a server's application opened: client connections and tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI


def close_with(app: FastAPI, aclose: Callable[[], Awaitable[None]]) -> None:
    """Have `aclose` called when the application shuts down, before what it did already."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[None]:
        async with inner(running):
            try:
                yield
            finally:
                await aclose()

    app.router.lifespan_context = lifespan
