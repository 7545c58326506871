"""The action in a model's answer: a tool call's argument `action`, or an `<action>` tag.

Guarantees: one action a turn. The first tool call acts, as the first tag does in NeMo Gym's
blackjack; a call that does not act is answered all the same, because chat templates want an
output for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space

from gym.formats.responses import text_of
from gym.protocol import parse_json

_BEGIN = re.compile("<action>", re.IGNORECASE)
_END = re.compile("</action>", re.IGNORECASE)


@dataclass(frozen=True)
class Wish:
    """The action that a model asks for.

    Attributes:
        action: As the model named it; None if it named none.
        call_ids: Tool calls of the answer, in order; the first is the one that acts.
    """

    action: str | None
    call_ids: list[str]


def wish_of(response: dict[str, Any]) -> Wish:
    """Read the answer of a model (a Responses body)."""
    calls = [item for item in _items(response) if item.get("type") == "function_call"]
    if calls:
        ids = [str(call.get("call_id")) for call in calls]
        return Wish(_argument(calls[0].get("arguments")), ids)
    return Wish(_tagged(text_of(response)), [])


def named_action(wanted: str | None, names: Mapping[str, int]) -> int | None:
    """The action behind its name, whatever its case; None if there is no such action."""
    return None if wanted is None else names.get(wanted.strip().lower())


def spelled_action(wanted: str | None, space: Space[Any]) -> Any:
    """The action behind its JSON spelling, for an environment whose actions have no names.

    None if it is not an action of this space.
    """
    if wanted is None:
        return None
    try:
        value = parse_json(wanted)
        if isinstance(space, Discrete):
            action: Any = value if type(value) is int else None
        else:
            action = np.asarray(value, dtype=space.dtype)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
    return action if action is not None and space.contains(action) else None


def _tagged(text: str) -> str | None:
    """Text of the first tag. One pass: a model may write spaces or tags without end."""
    begin = _BEGIN.search(text)
    end = _END.search(text, begin.end()) if begin else None
    return text[begin.end() : end.start()].strip() if begin and end else None


def _items(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response.get("output") or [] if isinstance(item, dict)]


def _argument(arguments: Any) -> str | None:
    try:
        given = parse_json(arguments)
    except (ValueError, TypeError, RecursionError):
        return None
    action = given.get("action") if isinstance(given, dict) else None
    return action if isinstance(action, str) or action is None else json.dumps(action)
