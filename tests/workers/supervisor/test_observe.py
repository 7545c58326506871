"""The supervisor's view of a claim: until when its claimant counts as working on it."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from gym.client import GymClient
from rl.snapshots import incarnations
from tests.workers.observations import cluster_view, status
from workers.config.settings import Settings, load_settings
from workers.job.ray_client import JobWatch
from workers.job.restarts import Restarter
from workers.supervisor import observe
from workers.supervisor.decide import Adopt, Observation, Wait, decide
from workers.supervisor.observe import Observer


class Look:
    """An observer whose Temporal and Ray say what the test says."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workflow_runs = True
        self.watch = JobWatch(settings)
        self._observer = Observer(settings, self.watch, Restarter(settings))

        async def connect(_: Settings) -> None:
            return None

        async def is_running(*_: Any) -> bool:
            return self.workflow_runs

        monkeypatch.setattr(observe, "connect", connect)
        monkeypatch.setattr(observe, "is_running", is_running)

    async def __call__(self, gym: GymClient) -> Observation:
        return await self._observer.observe(gym, 1, recovering=False, starting=())


async def test_a_claim_is_worked_on_until_a_look_that_began_after_its_claimants_end(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore brings the job to life and ends at once: a look from before shows neither.

    Break: believe the end of the workflow together with an older look into Ray; then a job that
    was restored a moment ago is restored again.
    """
    folder = settings.job_config().job_folder
    incarnations.claim(folder, {"run_id": "first"})
    incarnations.claim(folder, {"workflow_id": "demo/restore/x", "run_id": "second"})
    look = Look(settings, monkeypatch)
    async with GymClient(SecretStr("t" * 40)) as gym:
        look.watch.seen = cluster_view(None, at=time.monotonic())
        assert decide(await look(gym)) == Wait()
        look.workflow_runs = False
        assert decide(await look(gym)) == Wait()
        assert decide(await look(gym)) == Wait()
        look.watch.seen = cluster_view(status(incarnation=2), at=time.monotonic())
        assert decide(await look(gym)) == Adopt(2)


async def test_a_claim_that_a_later_look_shows_without_life_counts_as_abandoned(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = settings.job_config().job_folder
    incarnations.claim(folder, {"run_id": "first"})
    incarnations.claim(folder, {"workflow_id": "demo/restore/x", "run_id": "second"})
    look = Look(settings, monkeypatch)
    look.workflow_runs = False
    async with GymClient(SecretStr("t" * 40)) as gym:
        look.watch.seen = cluster_view(None, at=time.monotonic())
        assert (await look(gym)).claim_driven
        look.watch.seen = cluster_view(None, at=time.monotonic())
        assert not (await look(gym)).claim_driven


async def test_only_the_silence_of_servers_that_others_start_is_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: count an answer of 404 (an unmodified server's) as silence."""
    urls = {"gone": "http://127.0.0.1:1", "unmodified": "http://127.0.0.1:2"}
    servers = [
        *({"name": name, "kind": "resource", "url": url} for name, url in urls.items()),
        {"name": "ours", "kind": "resource", "url": "http://127.0.0.1:3", "command": ["python"]},
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.port == 2:
            return httpx.Response(404)
        raise httpx.ConnectError("refused")

    look = Look(load_settings(**{**dict(settings), "servers": servers}), monkeypatch)
    async with GymClient(SecretStr("t" * 40), transport=httpx.MockTransport(answer)) as gym:
        first = await look(gym)
        then = await look(gym)
    assert first.gym == {"ours"}
    assert set(first.unheard_s) == {"gone", "unmodified"}
    assert then.unheard_s["gone"] > first.unheard_s["gone"]
    assert then.unheard_s["gone"] > then.unheard_s["unmodified"]
