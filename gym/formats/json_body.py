"""Bodies of data-plane calls: JSON objects, kept exactly as they came."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from gym.protocol import InvalidRequest, parse_json


async def json_object(request: Request) -> dict[str, Any]:
    """The JSON object that is a call's body, key order kept.

    Raises:
        InvalidRequest: The body is something else, or holds NaN or an infinity.
    """
    try:
        body = parse_json(await request.body())
    except ValueError:
        raise InvalidRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    return body
