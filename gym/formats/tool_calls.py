"""What a model may call, and with what: tool names and arguments as random weights write them.

Guarantees: whatever the model wrote, the result is a JSON value that can be sent, or a refusal
whose text is shown to the model as the tool's output (NeMo Gym's behaviour).
"""

from __future__ import annotations

import json
import re
from typing import Any

from gym.formats.json_body import refuse_constant

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NOT_TOOLS = frozenset(
    {"seed_session", "verify", "close_session", "reset", "step", "close", "aggregate_metrics"}
)
"""Routes of a resource server that are the agent's to call, never the model's."""


class BadToolCall(Exception):
    """A call that is not sent; `output` is what the model is told."""

    def __init__(self, reason: str) -> None:
        """Keep the reason as a tool output."""
        super().__init__(reason)
        self.output = json.dumps({"error": reason})


def is_tool_name(name: Any) -> bool:
    """Whether it could be a tool's name, and is no route that is the agent's."""
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
        arguments = json.loads(text, parse_constant=refuse_constant)
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise BadToolCall(f"Invalid tool call arguments: {type(error).__name__}") from None
    return arguments
