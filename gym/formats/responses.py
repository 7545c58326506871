"""Translation between OpenAI Responses (the model server's routes) and chat completions (vLLM).

Guarantees: both directions are pure functions; the same chat completion gives the same
Responses body, ids included, so that a call issued again is answered alike. Key order of tool
schemas and arguments is kept, because chat templates print them into the prompt.

Not supported: streaming, audio and hosted tools. An item without a counterpart in chat completions
is refused with `InvalidRequest`, which names the item's type and nothing of its content.
"""

from __future__ import annotations

from typing import Any

from gym.protocol import InvalidRequest

JsonObject = dict[str, Any]

_SAME_NAME = (
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "chat_template_kwargs",
)
"""Request fields that mean the same on both sides and travel under the same name."""

_RANDOM_CALL_ID = "chatcmpl-tool-"
"""Begin of vLLM's tool-call ids where the model wrote none; a random number follows."""
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def chat_request(body: JsonObject, *, model: str | None, extra: JsonObject) -> JsonObject:
    """The chat completion request with the meaning of a Responses request.

    Args:
        body: Body of `/v1/responses`.
        model: Name of the model behind the generation endpoint; None keeps the body's.
        extra: Fields merged last (sampling that is configuration of the server). Its
            `tool_choice` counts only where the request has tools: without any, "required"
            would be refused.

    Raises:
        InvalidRequest: An item, part or tool without a counterpart in chat completions.
    """
    chat: JsonObject = {"messages": _messages(body)}
    if (name := model or body.get("model")) is not None:
        chat["model"] = name
    for field in _SAME_NAME:
        if body.get(field) is not None:
            chat[field] = body[field]
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if (wanted := _response_format(body.get("text"))) is not None:
        chat["response_format"] = wanted
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in _listed(body["tools"], "tools")]
        if body.get("tool_choice") is not None:
            chat["tool_choice"] = _tool_choice(body["tool_choice"])
    return with_extra(chat, extra)


def with_extra(chat: JsonObject, extra: JsonObject) -> JsonObject:
    """A chat request with the server's own fields merged over it (see `chat_request`)."""
    merged = {**chat, **extra}
    if not merged.get("tools"):
        merged.pop("tools", None)
        merged.pop("tool_choice", None)
        merged.pop("parallel_tool_calls", None)
    return merged


def response_of(chat: JsonObject, request: JsonObject, *, name: str | None = None) -> JsonObject:
    """The Responses body of a chat completion.

    Args:
        chat: The chat completion as the generation endpoint answered it.
        request: Body of the `/v1/responses` call; its tools and choices are echoed.
        name: Source of the ids of response and items; the completion's id if None.

    Raises:
        InvalidRequest: The completion has no choice with a message.
    """
    try:
        choice = chat["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        finish = choice.get("finish_reason")
        output = _output(message, _named(calls, name), name or str(chat["id"]))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InvalidRequest("the chat completion has no well-formed choice") from None
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
    return {
        "id": f"resp_{name or chat['id']}",
        "created_at": float(chat.get("created") or 0),
        "object": "response",
        "model": chat.get("model") or request.get("model") or "",
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "instructions": request.get("instructions"),
        "metadata": request.get("metadata") or {},
        "parallel_tool_calls": request.get("parallel_tool_calls", True) is not False,
        "temperature": request.get("temperature"),
        "top_p": request.get("top_p"),
        "max_output_tokens": request.get("max_output_tokens"),
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "output": output,
        "usage": _usage(chat.get("usage")),
    }


def text_of(response: JsonObject) -> str:
    """The text of all messages in a Responses body, also of one that is not well-formed."""
    texts = []
    for item in response.get("output") or []:
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(item, dict) or item.get("type") != "message":
            continue
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if isinstance(part, dict) and part.get("type") in ("output_text", "text"):
                texts.append(str(part.get("text") or ""))
    return "".join(texts)


def cut_short(model: str | None) -> JsonObject:
    """The empty completion that stands for a prompt longer than the model's context.

    NeMo Gym ends such a rollout as incomplete instead of failing it; so do we.
    """
    return {
        "id": "context-length",
        "object": "chat.completion",
        "created": 0,
        "model": model or "",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ""},
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _messages(body: JsonObject) -> list[JsonObject]:
    messages: list[JsonObject] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    items = body.get("input") or []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    turn = _AssistantTurn(messages)
    for item in _listed(items, "input"):
        if not isinstance(item, dict):
            raise InvalidRequest("an input item is not an object")
        kind = item.get("type") or "message"
        if kind == "reasoning":
            turn.reasoning(_text(item.get("content") or item.get("summary") or []))
        elif kind == "function_call":
            turn.call(item)
        elif kind == "message" and item.get("role") == "assistant":
            turn.message(_text(item.get("content")))
        elif kind == "message":
            turn.end()
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        elif kind == "function_call_output":
            turn.end()
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.get("call_id"),
                    "content": _text(item.get("output")),
                }
            )
        else:
            raise InvalidRequest(f"input item of type {str(kind)[:40]} is not supported")
    turn.end()
    return messages


class _AssistantTurn:
    """Collects reasoning, text and calls of one model turn into one assistant message."""

    def __init__(self, messages: list[JsonObject]) -> None:
        self._messages = messages
        self._open: JsonObject | None = None

    def reasoning(self, text: str) -> None:
        self._fresh("reasoning_content")["reasoning_content"] = text

    def message(self, text: str) -> None:
        self._fresh("content")["content"] = text

    def call(self, item: JsonObject) -> None:
        calls = self._fresh().setdefault("tool_calls", [])
        calls.append(
            {
                "id": item.get("call_id"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
        )

    def end(self) -> None:
        if self._open is not None:
            # An empty string, not null: templates that print the content would print "None".
            self._open.setdefault("content", "")
            self._messages.append(self._open)
            self._open = None

    def _fresh(self, field: str | None = None) -> JsonObject:
        if self._open is not None and field is not None:
            begun = "tool_calls" in self._open or "content" in self._open or field in self._open
            if begun:
                self.end()
        if self._open is None:
            self._open = {"role": "assistant"}
        return self._open


def _text(content: Any) -> str:
    """All text of a content value; anything else than text is refused."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in _listed(content, "content"):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            parts.append(part.get("refusal") or "")
        elif kind in _TEXT_PARTS:
            parts.append(part.get("text") or "")
        else:
            raise InvalidRequest(f"content part of type {str(kind)[:40]} is not supported here")
    return "".join(parts)


def _content(content: Any) -> Any:
    """Content of a user or system message: text as it is, images as chat parts."""
    if content is None or isinstance(content, str):
        return content or ""
    _listed(content, "content")
    if all(isinstance(part, dict) and part.get("type") in _TEXT_PARTS for part in content):
        return _text(content)
    parts: list[JsonObject] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "input_image":
            image = {"url": part.get("image_url"), "detail": part.get("detail") or "auto"}
            parts.append({"type": "image_url", "image_url": image})
        else:
            parts.append({"type": "text", "text": _text([part])})
    return parts


def _listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} is no list")
    return value


def _tool(tool: JsonObject) -> JsonObject:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise InvalidRequest("only tools of type function are supported")
    fields = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {field: tool[field] for field in fields if tool.get(field) is not None},
    }


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _response_format(text: Any) -> JsonObject | None:
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") in (None, "text"):
        return None
    if wanted["type"] != "json_schema":
        return {"type": wanted["type"]}
    schema = {key: value for key, value in wanted.items() if key != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _output(message: JsonObject, calls: list[JsonObject], name: str) -> list[JsonObject]:
    output: list[JsonObject] = []
    # vLLM renamed the field; both names are in use.
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": thought}]
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": summary})
    if text := message.get("content"):
        output.append(
            {
                "type": "message",
                "id": f"msg_{name}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        )
    for call in calls:
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{call['id']}",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                "status": "completed",
            }
        )
    return output


def _named(calls: list[JsonObject], name: str | None) -> list[JsonObject]:
    """The calls; random ids are replaced by ids made from the call's place, equal in each try."""
    if name is None:
        return calls
    return [
        call | {"id": f"call_{name}_{number}"}
        if str(call["id"]).startswith(_RANDOM_CALL_ID)
        else call
        for number, call in enumerate(calls)
    ]


def _usage(usage: Any) -> JsonObject | None:
    if not isinstance(usage, dict):
        return None
    prompt, generated = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.get("total_tokens") or prompt + generated,
    }
