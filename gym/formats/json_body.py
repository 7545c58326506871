"""Bodies of data-plane calls: JSON objects, kept exactly as they came."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from fastapi import Request

from gym.protocol import InvalidRequest


async def json_object(request: Request) -> dict[str, Any]:
    """The JSON object that is a call's body, key order kept.

    Raises:
        InvalidRequest: The body is something else, or holds NaN or an infinity, which could not
            be sent on.
    """
    try:
        body = json.loads(await request.body(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    return body


def refuse_constant(name: str) -> NoReturn:
    """For `json.loads(parse_constant=...)`: NaN and infinities are not JSON; a `ValueError`."""
    raise ValueError(f"{name} is not JSON")
