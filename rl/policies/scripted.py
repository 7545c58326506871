"""A policy that plays a script: OpenAI-compatible, deterministic, no model.

Guarantees: text, tool calls, token ids and log-probabilities of an answer are a function of the
rollout id, the model call id and what the row offers (tools, `tool_choice`, action tags) alone;
prompt ids are the bytes of the rendered conversation. So an answer does not change with the run,
the incarnation or the clock, and the next prompt extends this answer token for token. A rollout
plays a number of turns that depends on its id, each with one or two tool calls whose arguments fit
the offered schema; then it answers a plain message. Where `tool_choice` is "required" every answer
is a tool call, and where the row offers `<action>` tags and no tools every answer is one of them:
there the environment says when it is over.

Started as `python -m rl.policies.scripted --port P [--delay-s 0.05] [--turns 5] [--turns-spread
3]`. Identity comes from `X-Turnpoint-Rollout-Id` and `-Model-Call-Id`; a call without them is a
rollout named after its first message, at the call given by the number of assistant messages.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse

MODEL = "policy"
CREATED = 1_700_000_000
"""`created` of every answer: a clock would make two runs of a job differ."""
START_ID, END_ID = 256, 257
"""Token ids of `<|im_start|>` and `<|im_end|>`; 0 to 255 are bytes."""
_ACTION = re.compile(r"<action>\s*([^<>]+?)\s*</action>")


@dataclass(frozen=True)
class Script:
    """Length and speed of rollouts.

    Args:
        turns: Fewest turns with tool calls.
        turns_spread: Up to this many more, by rollout id.
        delay_s: Seconds each answer takes.
    """

    turns: int = 5
    turns_spread: int = 3
    delay_s: float = 0.05

    def turns_of(self, rollout_id: str) -> int:
        """Turns with tool calls that a rollout plays before its plain message."""
        return self.turns + _draw(rollout_id, "turns") % (self.turns_spread + 1)

    def message(
        self,
        rollout_id: str,
        call: int,
        tools: Sequence[dict[str, Any]],
        *,
        parallel: bool = True,
        required: bool = False,
        actions: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The assistant message of a rollout's model call.

        Args:
            rollout_id: The rollout.
            call: Number of the model call, from 0.
            tools: Chat-completions tools of the request.
            parallel: Whether more than one tool call is allowed in an answer.
            required: Whether an answer has to be a tool call, however long the rollout is.
            actions: What the row offers in `<action>` tags.
        """
        if actions and not tools:
            action = actions[_draw(rollout_id, call, "action") % len(actions)]
            return {"role": "assistant", "content": f"<action>{action}</action>"}
        if not tools or (call >= self.turns_of(rollout_id) and not required):
            return {"role": "assistant", "content": f"{rollout_id} is done after {call} turns."}
        count = 2 if parallel and _draw(rollout_id, call, "parallel") % 4 == 0 else 1
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [_tool_call(rollout_id, call, number, tools) for number in range(count)],
        }


def _draw(*seed: object) -> int:
    """A number below 2**32 that depends on `seed` alone."""
    text = "/".join(str(part) for part in seed)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _tool_call(
    rollout_id: str, call: int, number: int, tools: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    place = (rollout_id, call, number)
    function = tools[_draw(*place, "tool") % len(tools)]["function"]
    schema = function.get("parameters") or {"type": "object"}
    arguments = json.dumps(_value(schema, *place), separators=(",", ":"))
    return {
        "id": f"call_{_draw(*place, 'id'):08x}{_draw(*place, 'id2'):08x}",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def offered_actions(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The action tags that a conversation shows before its first answer, in order, each once.

    Later observations may repeat them; an environment's own first one is among them.
    """
    found: dict[str, None] = {}
    for message in messages:
        if message.get("role") == "assistant":
            break
        found |= dict.fromkeys(_ACTION.findall(_text_of(message)))
    return list(found)


def _value(schema: dict[str, Any], *place: object) -> Any:
    """A value that fits a JSON schema of the common kinds."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][_draw(*place) % len(schema["enum"])]
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return _value(schema[choice][0], *place)
    kind = schema.get("type", "object")
    match kind[0] if isinstance(kind, list) else kind:
        case "integer":
            low = int(schema.get("minimum", 1))
            return min(low + _draw(*place) % 9, int(schema.get("maximum", low + 9)))
        case "number":
            return float(schema.get("minimum", 0)) + _draw(*place) % 8 / 8
        case "boolean":
            return _draw(*place) % 2 == 0
        case "string":
            return f"text {_draw(*place) % 1000}"[: schema.get("maxLength")]
        case "array":
            item = schema.get("items") or {"type": "string"}
            return [_value(item, *place, k) for k in range(max(1, schema.get("minItems", 1)))]
        case "null":
            return None
        case _:
            named = schema.get("properties") or {}
            required = schema.get("required", list(named))
            return {name: _value(named[name], *place, name) for name in required if name in named}


def prompt_ids(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation, up to the place where the next answer begins."""
    ids: list[int] = []
    if tools:
        listed = "\n".join(json.dumps(tool, sort_keys=True) for tool in tools)
        ids += [START_ID, *f"system\nTools:\n{listed}".encode(), END_ID, *b"\n"]
    for message in messages:
        ids += [START_ID, *f"{message['role']}\n".encode(), *answer_ids(message), *b"\n"]
    return [*ids, START_ID, *b"assistant\n"]


def answer_ids(message: dict[str, Any]) -> list[int]:
    """Token ids of a message's content, its end included."""
    content = _text_of(message)
    for call in message.get("tool_calls") or []:
        function = call["function"]
        content += (
            f'<tool_call>{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
            "</tool_call>"
        )
    return [*content.encode(), END_ID]


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content)


def completion(script: Script, chat: dict[str, Any], rollout_id: str, call: int) -> dict[str, Any]:
    """The chat completion of one model call, in vLLM's shape.

    Args:
        script: What is played.
        chat: The request.
        rollout_id: The rollout.
        call: Number of the model call, from 0.
    """
    tools = chat.get("tools") or []
    message = script.message(
        rollout_id,
        call,
        tools,
        parallel=chat.get("parallel_tool_calls") is not False,
        required=chat.get("tool_choice") == "required",
        actions=offered_actions(chat["messages"]),
    )
    prompt, answer = prompt_ids(chat["messages"], tools), answer_ids(message)
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        "logprobs": None,
    }
    body: dict[str, Any] = {
        "id": f"chatcmpl-{_draw(rollout_id, call, 'answer'):08x}",
        "object": "chat.completion",
        "created": CREATED,
        "model": chat.get("model") or MODEL,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(answer),
            "total_tokens": len(prompt) + len(answer),
        },
    }
    if chat.get("logprobs"):
        choice["logprobs"] = {
            "content": [_log_prob(token, rollout_id, call, k) for k, token in enumerate(answer)]
        }
    if chat.get("return_token_ids"):
        body["prompt_token_ids"], choice["token_ids"] = prompt, answer
    return body


def _log_prob(token: int, rollout_id: str, call: int, place: int) -> dict[str, Any]:
    # Multiples of 1/1024 are exact in float32, as staged rows keep them.
    log_prob = -(_draw(rollout_id, call, place, "log_prob") % 4096) / 1024
    return {"token": str(token), "logprob": log_prob, "bytes": None, "top_logprobs": []}


def create_app(script: Script) -> FastAPI:
    """Routes of the policy: `/health`, `/v1/models`, `/v1/chat/completions`."""
    app = FastAPI(title="Scripted policy", docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "turnpoint"}
        return {"object": "list", "data": [model]}

    @app.post("/v1/chat/completions")
    async def chat_completions(
        request: Request,
        x_turnpoint_rollout_id: str | None = Header(None),
        x_turnpoint_model_call_id: str | None = Header(None),
    ) -> JSONResponse:
        chat = await request.json()
        messages = chat.get("messages")
        if not isinstance(messages, list) or not messages or chat.get("stream"):
            problem = {"message": "messages, and no stream, are needed", "code": 400}
            return JSONResponse({"error": problem}, status_code=400)
        first = json.dumps(messages[0], sort_keys=True)
        rollout_id = x_turnpoint_rollout_id or f"anonymous-{_draw(first):08x}"
        call = sum(message.get("role") == "assistant" for message in messages)
        if x_turnpoint_model_call_id:
            call = int(x_turnpoint_model_call_id.removeprefix("call-"))
        await asyncio.sleep(script.delay_s)
        return JSONResponse(completion(script, chat, rollout_id, call))

    return app


def main() -> None:
    """Command line: serve the script on loopback until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m rl.policies.scripted")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-s", type=float, default=Script.delay_s)
    parser.add_argument("--turns", type=int, default=Script.turns)
    parser.add_argument("--turns-spread", type=int, default=Script.turns_spread)
    given = parser.parse_args()
    script = Script(given.turns, given.turns_spread, given.delay_s)
    uvicorn.run(
        create_app(script),
        host=given.host,
        port=given.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )


if __name__ == "__main__":
    main()
