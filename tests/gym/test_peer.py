"""Calls of an agent to one server."""

from __future__ import annotations

import json

import httpx
import pytest

from gym.peer import Peer
from gym.protocol import (
    Identity,
    ServerFault,
)


@pytest.mark.parametrize("status", [None, 502])
async def test_a_call_without_identity_is_not_issued_again(status: int | None) -> None:
    """No receipt would make the repeat harmless. Break: raise `ServerUnreachable` as it is."""
    asked: list[httpx.Request] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if status is None:
            raise httpx.ReadError("lost")
        return httpx.Response(status, text="bad gateway")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        peer = Peer("counter", "http://counter", http).without_identity()
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).mutation("seed")
        with pytest.raises(ServerFault, match="not issued again"):
            await peer.post("seed_session", {}, identity, {"a": "b"})
    [request] = asked
    assert not any(name.startswith("x-turnpoint-") for name in request.headers)
    assert (request.headers["cookie"], json.loads(request.content)) == ("a=b", {})
