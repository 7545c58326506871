"""Bodies of data-plane calls: JSON objects, kept exactly as they came."""

from __future__ import annotations

import pytest
from fastapi import Request

from gym.formats.json_body import json_object
from gym.protocol import InvalidRequest


def request(body: bytes) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "headers": []}, receive)


async def test_an_object_keeps_the_order_of_its_keys() -> None:
    assert list(await json_object(request(b'{"b": 1, "a": {"d": 2, "c": 3}}'))) == ["b", "a"]


@pytest.mark.parametrize("body", [b"", b"secret", b"[1]", b"1", b'{"a": NaN}', b"[" * 100_000])
async def test_any_other_body_is_refused_without_its_text(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await json_object(request(body))
    assert "secret" not in str(refused.value)
