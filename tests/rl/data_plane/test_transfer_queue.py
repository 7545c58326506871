"""The adapter's own promises, with TransferQueue played by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import transfer_queue as tq

from rl.data_plane.rows import StagingRow
from rl.data_plane.transfer_queue import DataPlane
from rl.errors import DataPlaneLost

ROW = StagingRow([1], [2], [-0.5], b"{}", "0" * 64, "v1")


@pytest.mark.parametrize(("readable_after", "puts"), [(1, 1), (3, 3)])
async def test_a_put_returns_once_the_row_is_readable(
    monkeypatch: pytest.MonkeyPatch, readable_after: int, puts: int
) -> None:
    done = play(monkeypatch, readable_after)
    await DataPlane().put_staging("k", ROW)
    assert len(done) == puts


async def test_a_row_that_never_becomes_readable_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(monkeypatch, 99)
    with pytest.raises(DataPlaneLost):
        await DataPlane().put_staging("k", ROW)


def play(monkeypatch: pytest.MonkeyPatch, readable_after: int) -> list[Any]:
    """Have every put succeed, as TransferQueue does, and the controller hear of a later one."""
    puts: list[Any] = []

    async def put(**given: Any) -> None:
        puts.append(given)

    async def meta(**_: Any) -> Any:
        ready = len(puts) >= readable_after
        return SimpleNamespace(field_names=list(puts[-1]["fields"].keys()) if ready else [])

    monkeypatch.setattr(tq, "async_kv_batch_put", put)
    monkeypatch.setattr(
        tq, "get_client", lambda: SimpleNamespace(async_kv_retrieve_meta=meta), raising=True
    )
    return puts
