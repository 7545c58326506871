"""Names of tools that a model may call."""

from __future__ import annotations

import json

import pytest

from gym.formats.tool_calls import BadToolCall, tool_arguments, tool_name


@pytest.mark.parametrize(
    "text", ["{", "", None, "NaN", "-Infinity", "1e999", '"\\ud800"', "[" * 100_000]
)
def test_what_cannot_be_sent_is_told_to_the_model(text: object) -> None:
    with pytest.raises(BadToolCall) as caught:
        tool_arguments(text)
    assert "Invalid tool call arguments" in json.loads(caught.value.output)["error"]


@pytest.mark.parametrize("text", ['{"count": 1}', "true", "[]", '"\\u00e9"'])
def test_json_is_sent_as_it_is(text: str) -> None:
    assert tool_arguments(text) == json.loads(text)


@pytest.mark.parametrize(
    "name", ["verify", "seed_session", "checkpoint/v1/resume", "../x", "add\n", "", None]
)
def test_routes_that_are_no_tools_are_not_the_models_to_call(name: object) -> None:
    """Break: gym/formats/tool_calls.py: end `_TOOL_NAME` with `$`: a name and a line end fit it."""
    with pytest.raises(BadToolCall):
        tool_name(name)
