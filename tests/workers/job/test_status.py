"""`turnpoint status`: why a Gym server has no phase."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gym.client import GymClient
from gym.protocol import Capabilities, ServerFault, ServerUnreachable, TurnpointError, Unauthorized
from rl.snapshots import incarnations
from tests.workers.observations import status
from workers.config.key_files import ensure_key_file
from workers.config.settings import Settings
from workers.job.status import JobView, being_raised, look_at_job

ANSWERS: dict[str, TurnpointError] = {
    "down": ServerUnreachable("no answer (ConnectError)"),
    "broken": ServerFault("HTTP 500 without a known error code", details={"http": 500}),
    "stranger": Unauthorized("the bearer token is missing or another one"),
    "unmodified": ServerFault("HTTP 404 without a known error code", details={"http": 404}),
}


def test_each_server_without_a_phase_has_its_reason_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break: show the phase alone. A wrong token looked like a dead server."""

    async def capabilities(self: GymClient, url: str, name: str) -> Capabilities:
        raise ANSWERS[name]

    monkeypatch.setattr(GymClient, "capabilities", capabilities)
    ensure_key_file(tmp_path / "control_token", "control_token")
    settings = Settings(
        state_dir=tmp_path,
        servers=[
            {"name": name, "kind": "resource", "url": f"http://127.0.0.1:{port}"}
            | ({"command": ["true"]} if name == "down" else {})
            for port, name in enumerate(ANSWERS, start=1)
        ],
        policy_url="http://127.0.0.1:9/v1",
        generation_port=10,
    )
    view = asyncio.run(look_at_job(settings, with_controller=False))
    assert view.phases == dict.fromkeys(ANSWERS)
    assert set(view.problems) == {"down", "broken", "stranger"}
    assert view.problems["down"].startswith("server_unreachable: ")
    assert "turnpoint logs down" in view.problems["down"]
    assert "http://127.0.0.1:1" in view.problems["down"]
    assert view.problems["broken"].startswith("server_fault: HTTP 500")
    assert "the stack does not start it" in view.problems["broken"]
    assert view.problems["stranger"].startswith("unauthorized: ")
    assert "another token" in view.problems["stranger"]


def test_an_incarnation_that_is_claimed_and_not_begun_is_being_restored(tmp_path: Path) -> None:
    """Break: look at the controller alone. A restore looked like a job that is not running."""
    assert being_raised(tmp_path) is None
    incarnations.claim(tmp_path, {"run_id": "1", "started_by": "turnpoint run"})
    assert being_raised(tmp_path) == "incarnation 1 is being started"
    incarnations.record_origin(tmp_path, 1, None)
    assert being_raised(tmp_path) is None
    incarnations.claim(tmp_path, {"run_id": "2", "workflow_id": "demo/restore/x"})
    view = JobView(
        job_id="demo",
        incarnation=2,
        controller=None,
        phases={},
        snapshots=[],
        being_raised=being_raised(tmp_path),
    )
    assert view.sentence().startswith("job demo: incarnation 2 is being restored; ")
    lives = view.model_copy(update={"controller": status("running", 2)})
    assert lives.sentence().startswith("job demo, incarnation 2: running")
