"""The scripted policy: the same answer for the same call, whatever else differs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rl.policies.scripted import Script, answer_ids, completion, create_app, prompt_ids

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "increment_counter",
            "parameters": {
                "type": "object",
                "properties": {"count": {"type": "integer", "description": ""}},
                "required": ["count"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_counter_value", "parameters": {"type": "object"}},
    },
]
USER = {"role": "user", "content": "add 1 then add 2 then get the count"}


async def ask(rollout: str | None, call: int, **more: Any) -> dict[str, Any]:
    transport = httpx.ASGITransport(create_app(Script(delay_s=0)))
    headers = {}
    if rollout is not None:
        headers = {"X-Turnpoint-Rollout-Id": rollout, "X-Turnpoint-Model-Call-Id": f"call-{call}"}
    chat = {"model": "policy", "messages": [USER], "tools": TOOLS, "seed": 1} | more
    async with httpx.AsyncClient(transport=transport, base_url="http://policy") as http:
        answer = await http.post("/v1/chat/completions", json=chat, headers=headers)
    assert answer.status_code == 200
    return answer.json()


async def test_an_answer_is_a_function_of_rollout_and_call() -> None:
    wanted = {"return_token_ids": True, "logprobs": True}
    first = await ask("p0_g0", 0, **wanted)
    assert first == await ask("p0_g0", 0, **wanted, seed=2, temperature=0.5)
    assert len({str(await ask(f"p{n}_g0", 0)) for n in range(10)}) == 10
    assert first["choices"][0]["message"] != (await ask("p0_g0", 1))["choices"][0]["message"]
    choice = first["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])
    assert all(token["logprob"] <= 0 for token in choice["logprobs"]["content"])


async def test_tokens_come_only_when_asked_for() -> None:
    plain = await ask("p0_g0", 0)
    assert "prompt_token_ids" not in plain
    assert plain["choices"][0]["logprobs"] is None


def test_a_rollout_plays_its_turns_and_then_says_so() -> None:
    script = Script(turns=5, turns_spread=3)
    lengths = {f"p{n}_g0": script.turns_of(f"p{n}_g0") for n in range(40)}
    assert set(lengths.values()) == {5, 6, 7, 8}
    for rollout, turns in lengths.items():
        calls = [script.message(rollout, call, TOOLS) for call in range(turns + 1)]
        assert all(message["tool_calls"] for message in calls[:-1])
        assert "tool_calls" not in calls[-1]


def test_tool_calls_are_valid_and_their_ids_unique() -> None:
    script, seen, named = Script(), set(), set()
    for rollout in (f"p{n}_g{m}" for n in range(20) for m in range(2)):
        for call in range(script.turns_of(rollout)):
            tool_calls = script.message(rollout, call, TOOLS)["tool_calls"]
            assert len(script.message(rollout, call, TOOLS, parallel=False)["tool_calls"]) == 1
            named.add((len(tool_calls), tool_calls[0]["function"]["name"]))
            for tool_call in tool_calls:
                assert tool_call["id"] not in seen
                seen.add(tool_call["id"])
                arguments = httpx.Response(200, text=tool_call["function"]["arguments"]).json()
                if tool_call["function"]["name"] == "increment_counter":
                    assert list(arguments) == ["count"]
                    assert isinstance(arguments["count"], int)
                else:
                    assert arguments == {}
    assert named == {(n, tool["function"]["name"]) for n in (1, 2) for tool in TOOLS}


def test_the_next_prompt_extends_prompt_and_answer() -> None:
    script, messages = Script(), [USER]
    known = prompt_ids(messages, TOOLS)
    for call in range(5):
        chat = {"messages": messages, "tools": TOOLS, "return_token_ids": True}
        body = completion(script, chat, "p0_g0", call)
        message = body["choices"][0]["message"]
        assert body["prompt_token_ids"][: len(known)] == known
        known = body["prompt_token_ids"] + body["choices"][0]["token_ids"]
        assert body["choices"][0]["token_ids"] == answer_ids(message)
        results = [{"role": "tool", "content": "{}"} for _ in message["tool_calls"]]
        messages = [*messages, message, *results]


def play(messages: list[dict[str, Any]], rollout: str, call: int, **more: Any) -> dict[str, Any]:
    return completion(Script(), {"messages": messages, **more}, rollout, call)["choices"][0][
        "message"
    ]


def test_action_tags_of_the_row_are_played_whatever_comes_later() -> None:
    """Break: look for tags in the whole conversation."""
    row = [
        {"role": "system", "content": "Answer <action>hit</action> or <action>stand</action>."},
        {"role": "user", "content": [{"type": "text", "text": "<action> hit </action>?"}]},
    ]
    played = {play(row, f"p{n}_g0", 30)["content"] for n in range(20)}
    assert played == {"<action>hit</action>", "<action>stand</action>"}
    later = [
        *row,
        {"role": "assistant", "content": "<action>hit</action>"},
        {"role": "user", "content": "or <action>double</action>"},
    ]
    for n in range(20):
        assert play(later, f"p{n}_g0", 1) == play(row, f"p{n}_g0", 1)


def test_a_required_tool_call_comes_in_every_answer() -> None:
    """Break: leave `required` out of `Script.message`."""
    for call in (0, 8, 100):
        message = play([USER], "p0_g0", call, tools=TOOLS, tool_choice="required")
        assert message["tool_calls"]
    assert "tool_calls" not in play([USER], "p0_g0", 100, tools=TOOLS, tool_choice="auto")


async def test_without_headers_the_conversation_names_the_rollout() -> None:
    first = (await ask(None, 0))["choices"][0]["message"]
    later = [USER, first, {"role": "tool", "content": "{}"}]
    assert (await ask(None, 0))["choices"][0]["message"] == first
    assert (await ask(None, 0, messages=later))["choices"][0]["message"] != first


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["a", "b"]},
        {"type": ["integer", "null"], "minimum": 3, "maximum": 4},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        {"anyOf": [{"type": "number"}, {"type": "null"}]},
        {"const": 7},
    ],
)
def test_arguments_fit_common_schemas(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    for rollout in range(20):
        call = Script().message(f"p{rollout}_g0", 0, [tool])["tool_calls"][0]
        arguments = httpx.Response(200, text=call["function"]["arguments"]).json()
        jsonschema.validate(arguments, parameters)
