"""A typed client beside an actor must fit it: same method, same arguments, same answer."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

INCARNATION = 7


async def assert_fits(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, client: type, actor: type, name: str
) -> None:
    """Call each method of `client` with marks for arguments; the actor could take each call."""
    calls: list[tuple[Any, ...]] = []

    async def call(*args: Any, timeout_s: float | None = None) -> str:
        calls.append((*args, timeout_s))
        return "answer"

    monkeypatch.setattr(module, "call", call)
    methods = {n: m for n, m in inspect.getmembers(client, callable) if not n.startswith("_")}
    assert methods
    for method in methods:
        bound = getattr(client(INCARNATION), method)
        marks = {p: f"mark of {p}" for p in inspect.signature(bound).parameters}
        answer = await bound(**marks)
        sent = calls.pop()
        told = inspect.signature(getattr(actor, method))
        limit = marks.pop("timeout_s", None) if sent[-1] is not None else None
        assert sent[:2] == (name, method) and sent[-1] == limit
        carries = "incarnation" in told.parameters
        assert sent[2:-1] == ((INCARNATION,) if carries else ()) + tuple(marks.values())
        told.bind(None, *sent[2:-1])
        assert (answer is None) == (told.return_annotation == "None")
        assert inspect.signature(bound).return_annotation == told.return_annotation
