"""The actor without Ray: whose calls it answers, and what it refuses before its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.protocol import StaleIncarnation
from rl.controller import actor as module
from rl.controller.actor import SingleController
from rl.errors import ControllerLost, OtherJob
from tests.rl.fakes import config, servers


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SingleController:
    monkeypatch.setattr(module, "configure_logging", lambda name: None)
    return SingleController(config(tmp_path), 2, servers())


async def test_calls_of_another_incarnation_or_job_are_refused(actor: SingleController) -> None:
    """Break: rl/controller/actor.py: compare with the newest incarnation only."""
    for other in (1, 3):
        with pytest.raises(StaleIncarnation, match="this is incarnation 2"):
            await actor.servers(other)
        with pytest.raises(StaleIncarnation):
            await actor.renew(other, "ck", 5)
        with pytest.raises(StaleIncarnation):
            await actor.start_pumps(other)
    with pytest.raises(OtherJob):
        await actor.begin_checkpoint("other", "ck", None)


async def test_before_the_start_only_status_and_servers_are_answered(
    actor: SingleController,
) -> None:
    assert (await actor.status()).state == "starting"
    assert await actor.servers(2) == servers()
    for refused in (
        actor.begin_checkpoint("job", "ck", None),
        actor.close_admission(2, "ck", 1),
        actor.cut_rl_state(2, "ck", "folder", 1),
        actor.resume_checkpoint(2, "ck", None),
        actor.renew(2, "ck", 1),
        actor.discard_continuations(2, "restore"),
        actor.start_pumps(2),
    ):
        with pytest.raises(ControllerLost):
            await refused
