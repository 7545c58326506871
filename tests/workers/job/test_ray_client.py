"""The dialogue with the child that joins Ray; the child is a script that prints given lines."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rl.config import Workload
from tests.workers.observations import cluster_view, status
from workers.config.settings import Settings, load_settings
from workers.job import ray_client
from workers.job.ray_client import JobWatch, RayCallFailed, start_fresh, start_stateless

START = """
import json, sys
json.loads(sys.stdin.readline())
print("a line of Ray's own")
print('{"claimed": 4}', flush=True)
print(json.dumps({"incarnation": 4 if sys.stdin.readline() == "go on\\n" else 0}))
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(state_dir=tmp_path)


def child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(ray_client, "CHILD", (sys.executable, "-c", program))


async def test_a_start_goes_on_once_the_servers_of_the_claimed_incarnation_are_ready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: workers/job/ray_client.py: send no second line."""
    child(monkeypatch, START)
    claimed: list[int] = []

    async def on_claimed(incarnation: int) -> None:
        claimed.append(incarnation)

    workload = Workload(dataset=Path("/rows.jsonl"))
    assert await start_fresh(settings, workload, replace=False, on_claimed=on_claimed) == 4
    assert claimed == [4]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ('print(\'{"code": "job_alive", "message": "it runs"}\')', "job_alive"),
        ("raise SystemExit(1)", "ray_unreachable"),
    ],
)
async def test_a_child_that_fails_or_dies_is_a_typed_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, program: str, code: str
) -> None:
    child(monkeypatch, program)
    with pytest.raises(RayCallFailed) as caught:
        await start_stateless(settings, 4)
    assert caught.value.code == code


async def test_a_watch_shows_the_newest_look_and_none_after_its_child_has_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: workers/job/ray_client.py: keep the look of a child that has ended."""
    monkeypatch.setattr(ray_client, "AGAIN_S", 60)
    line = cluster_view(status()).model_dump_json()
    child(monkeypatch, f"import time\nprint({line!r}, flush=True)\ntime.sleep(0.3)")
    async with JobWatch(settings) as watch:
        assert (await watch.first(30)).controller == status()
        async with asyncio.timeout(30):
            while watch.seen is not None:  # noqa: ASYNC110 - no event is set at its end
                await asyncio.sleep(0.01)
        await watch.again(settings)
        assert (await watch.first(30)).controller == status()
