"""Responses <-> chat completions."""

from __future__ import annotations

import json

import pytest

from gym.formats.responses import chat_request, cut_short, response_of, with_extra
from gym.protocol import InvalidRequest

TOOL = {
    "type": "function",
    "name": "increment_counter",
    "description": "",
    "strict": True,
    "parameters": {"type": "object", "required": ["count"], "properties": {"count": {}}},
}


def test_a_turn_of_reasoning_text_and_calls_becomes_one_assistant_message() -> None:
    chat = chat_request(
        {
            "input": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "input_text", "text": "add 1"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "ok", "annotations": []}],
                },
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x":1}'},
                {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {"type": "function_call_output", "call_id": "b", "output": "2"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "increment_counter"},
            "max_output_tokens": 9,
            "temperature": 0.5,
        },
        model="tiny",
        extra={},
    )
    assert chat["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "add 1"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "ok",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
    ]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "increment_counter"}}
    assert chat["tools"][0]["function"]["strict"] is True
    assert (chat["max_tokens"], chat["temperature"], chat["model"]) == (9, 0.5, "tiny")


def test_the_key_order_of_tool_schemas_is_kept() -> None:
    chat = chat_request({"input": "x", "tools": [TOOL]}, model=None, extra={})
    sent = chat["tools"][0]["function"]["parameters"]
    assert json.dumps(sent) == json.dumps(TOOL["parameters"])


def test_two_assistant_messages_stay_two() -> None:
    items = [{"type": "message", "role": "assistant", "content": text} for text in "ab"]
    messages = chat_request({"input": items}, model=None, extra={})["messages"]
    assert [message["content"] for message in messages] == ["a", "b"]


def test_extra_fields_win_but_force_no_tool_where_there_is_none() -> None:
    extra = {"tool_choice": "required", "temperature": 1.0}
    with_tools = chat_request(
        {"input": "x", "tools": [TOOL], "temperature": 0}, model=None, extra=extra
    )
    assert (with_tools["tool_choice"], with_tools["temperature"]) == ("required", 1.0)
    assert "tool_choice" not in with_extra({"messages": [], "tools": []}, extra)


@pytest.mark.parametrize(
    "body",
    [
        {"input": [{"type": "computer_call", "secret": "s3cret"}]},
        {"input": ["s3cret"]},
        {"input": [{"role": "user", "content": [{"type": "input_audio", "data": "s3cret"}]}]},
        {"input": "x", "tools": [{"type": "web_search", "key": "s3cret"}]},
        {"input": {"s3cret": 1}},
        {"input": "x", "tools": {"s3cret": 1}},
        {"input": [{"role": "user", "content": 5}]},
        {"input": [{"role": "assistant", "content": {"s3cret": 1}}]},
        {"input": [{"type": "function_call_output", "call_id": "a", "output": 5}]},
    ],
)
def test_what_chat_cannot_say_is_refused_without_quoting_it(body: dict[str, object]) -> None:
    """Break: gym/formats/responses.py: go through whatever stands in the place of a list."""
    with pytest.raises(InvalidRequest) as caught:
        chat_request(body, model=None, extra={})
    assert "s3cret" not in str(caught.value)


def chat_completion(**message: object) -> dict[str, object]:
    return {
        "id": "cmpl-1",
        "created": 7,
        "model": "tiny",
        "choices": [
            {"message": {"role": "assistant", "content": None} | message, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_a_completion_becomes_items_with_ids_of_the_call() -> None:
    call = {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
    chat = chat_completion(content="hi", reasoning="why", tool_calls=[call])
    response = response_of(chat, {"input": "x", "tools": [TOOL]}, name="p0_call-3")
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert response["id"] == "resp_p0_call-3"
    assert response["output"][2]["call_id"] == "t0"
    assert response["output"][2]["arguments"] == '{"b":1,"a":2}'
    assert response["usage"]["total_tokens"] == 5
    assert response["status"] == "completed"
    assert response == response_of(chat, {"input": "x", "tools": [TOOL]}, name="p0_call-3")


def test_random_call_ids_are_named_after_their_place() -> None:
    function = {"name": "f", "arguments": "{}"}
    calls = [
        {"id": "chatcmpl-tool-8f3a", "type": "function", "function": function},
        {"id": "functions.f:1", "type": "function", "function": function},
    ]
    named = response_of(chat_completion(tool_calls=calls), {}, name="p0_call-3")
    assert [item["call_id"] for item in named["output"]] == ["call_p0_call-3_0", "functions.f:1"]


def test_what_was_answered_can_be_sent_back_as_it_was() -> None:
    call = {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
    message = {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "why",
        "tool_calls": [call],
    }
    response = response_of(chat_completion(**message), {})
    again = chat_request({"input": response["output"]}, model=None, extra={})
    assert again["messages"] == [message]


def test_a_prompt_that_does_not_fit_ends_as_incomplete() -> None:
    response = response_of(cut_short("tiny"), {"input": "x"})
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"] == []


def test_a_completion_without_a_message_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        response_of({"id": "x", "choices": []}, {})
