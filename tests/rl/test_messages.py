"""Requests and answers of the RL actors: they travel whole, and refuse what they do not know."""

from __future__ import annotations

import pickle

import pytest
from pydantic import BaseModel, ValidationError

from gym.protocol import Wire
from rl import messages
from rl.messages import ControllerStatus, JobPhase, RunResult
from tests.workers.observations import status


def _models() -> list[type[BaseModel]]:
    found = [item for item in vars(messages).values() if isinstance(item, type)]
    return [m for m in found if issubclass(m, Wire) and m.__module__ == messages.__name__]


def test_every_message_refuses_an_unknown_field() -> None:
    assert len(_models()) > 10
    assert all(model.model_config["extra"] == "forbid" for model in _models())
    with pytest.raises(ValidationError):
        ControllerStatus.model_validate(status().model_dump() | {"unknown": 1})


def test_a_result_travels_with_the_bytes_that_its_agent_wrote() -> None:
    """Break: rl/messages.py: make `result` a mapping: its digest is of the bytes."""
    result = RunResult(
        rollout_id="p0_g0",
        attempt_index=0,
        agent="agent",
        reward=1.0,
        result_digest="0" * 64,
        result=b'{"reward": 1.0}',
        records=[],
        resource_revisions={"counter": None},
    )
    again = pickle.loads(pickle.dumps(result))
    assert again == result and again.result == b'{"reward": 1.0}'


@pytest.mark.parametrize("phase", list(JobPhase))
def test_a_job_is_over_when_finished_or_failed(phase: JobPhase) -> None:
    assert phase.is_over is (phase in ("finished", "failed"))
