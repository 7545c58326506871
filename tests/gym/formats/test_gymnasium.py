"""Answers of `/reset` and `/step`: NeMo Gym's shapes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gym.formats.gymnasium import ResetAnswer, StepAnswer


def test_what_is_left_out_has_nemo_gyms_defaults() -> None:
    assert ResetAnswer().model_dump() == {"observation": None, "info": {}}
    step = StepAnswer.model_validate({})
    assert (step.observation, step.reward, step.over, step.info.tool_outputs) == (
        None,
        0,
        False,
        [],
    )


def test_an_episode_is_over_when_it_is_terminated_or_truncated() -> None:
    assert StepAnswer(terminated=True).over and StepAnswer(truncated=True).over


def test_other_keys_of_a_steps_info_pass_through() -> None:
    info = {"score": 1, "tool_outputs": [{"call_id": "c", "output": "o"}]}
    assert StepAnswer.model_validate({"info": info}).info.model_dump() == info


def test_a_reward_that_is_no_number_is_refused_without_its_value() -> None:
    for reward in (float("nan"), "secret"):
        with pytest.raises(ValidationError) as refused:
            StepAnswer.model_validate({"reward": reward})
        assert "secret" not in str(refused.value)
