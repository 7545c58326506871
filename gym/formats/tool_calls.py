"""Tool calls as a model writes them, also one with random weights: names and arguments.

Guarantees: for any text of the model the result is a JSON value that can be sent, or a refusal
whose text is shown to the model as the tool's output (NeMo Gym's behaviour).
"""

from __future__ import annotations

import json
import re
from typing import Any

from gym.protocol import parse_json

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NOT_TOOLS = frozenset(
    {"seed_session", "verify", "close_session", "reset", "step", "close", "aggregate_metrics"}
)
"""Routes of a resource server that the agent calls, never the model."""


class BadToolCall(Exception):
    """A call that is not sent; the model is shown `output` as the tool's output."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.output = json.dumps({"error": reason})


def is_tool_name(name: Any) -> bool:
    """True for a name that a tool may have and that is no route of the agent's own."""
    return isinstance(name, str) and bool(_TOOL_NAME.fullmatch(name)) and name not in _NOT_TOOLS


def tool_name(name: Any) -> str:
    """The route of a tool.

    Raises:
        BadToolCall: It is no tool's name.
    """
    if not is_tool_name(name):
        raise BadToolCall("Unknown tool")
    return str(name)


def tool_arguments(text: Any) -> Any:
    """Decode a call's arguments.

    Raises:
        BadToolCall: They are not JSON, or hold what JSON cannot carry (NaN, lone surrogates).
    """
    try:
        arguments = parse_json(text)
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise BadToolCall(f"Invalid tool call arguments: {type(error).__name__}") from None
    return arguments
