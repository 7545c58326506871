"""The controller's answer to a renewal decides; its silence does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from activities import leases
from activities.contract.save import CheckpointRequest
from gym.protocol import DeadlineExceeded, ServerUnreachable, StaleIncarnation, TurnpointError
from rl.errors import ActorLost
from rl.messages import NEMO_GYM, SINGLE_CONTROLLER

Answers = dict[str, bool | TurnpointError]
LEASE_S = 30.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answers of the actors to `renew`, which has a third of the lease for its call."""
    answers: Answers = {SINGLE_CONTROLLER: True, NEMO_GYM: True}

    async def call(name: str, method: str, *arguments: Any, timeout_s: float) -> bool:
        assert (method, *arguments) == ("renew", 1, "c1", LEASE_S)
        assert timeout_s == LEASE_S / 3
        answer = answers[name]
        if isinstance(answer, TurnpointError):
            raise answer
        return answer

    for module in ("rl.controller.client", "rl.nemo_gym.client"):
        monkeypatch.setattr(f"{module}.call", call)
    return answers


async def _renewed() -> bool:
    request = CheckpointRequest(
        job_id="job", checkpoint_id="c1", incarnation=1, lease_s=LEASE_S, deadline=datetime.now(UTC)
    )
    return await leases.renewal(request)(LEASE_S)


async def test_the_controllers_word_decides(asked: Answers) -> None:
    assert await _renewed()
    asked[SINGLE_CONTROLLER] = False
    assert not await _renewed()


@pytest.mark.parametrize("actor", [SINGLE_CONTROLLER, NEMO_GYM])
async def test_a_late_answer_proves_nothing_and_is_logged(
    asked: Answers, actor: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two thirds of the lease are left. Break: activities/leases.py: let the error through."""
    asked[actor] = DeadlineExceeded("no answer in 10 s", participant=actor)
    assert await _renewed()
    (record,) = caplog.records
    assert vars(record)["code"] == "deadline_exceeded"


@pytest.mark.parametrize("lost", [ActorLost("died"), StaleIncarnation("another")])
async def test_a_controller_that_is_lost_ends_the_try(asked: Answers, lost: TurnpointError) -> None:
    """Break: activities/leases.py: take any error of the controller's for a late answer."""
    asked[SINGLE_CONTROLLER] = lost
    with pytest.raises(type(lost)):
        await _renewed()


async def test_servers_out_of_reach_end_nothing(
    asked: Answers,
) -> None:
    asked[NEMO_GYM] = ServerUnreachable("no answer")
    assert await _renewed()
