"""Calls of an agent to one server."""

from __future__ import annotations

import json

import httpx
import pytest

from gym.peer import Peer, Reply
from gym.protocol import CheckpointParked, Identity, ServerFault, SessionLost
from gym.retry import TryAgain


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


def parked(**headers: str) -> httpx.Response:
    error = CheckpointParked("closed")
    return httpx.Response(error.status, json=error.body(), headers=headers)


@pytest.mark.parametrize(
    ("answer", "after_s"),
    [
        (parked(**{"retry-after": "3"}), 3.0),
        (parked(**{"retry-after": "soon"}), None),
        (httpx.Response(503, text="draining"), None),
    ],
)
def test_a_refusal_that_passes_is_to_be_repeated_when_the_server_says(
    answer: httpx.Response, after_s: float | None
) -> None:
    with pytest.raises(TryAgain) as again:
        Reply("counter", answer).require_final()
    assert again.value.after_s == after_s


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={}),
        httpx.Response(503, json={"detail": "no index"}),
        httpx.Response(410, json=SessionLost("lost").body()),
    ],
)
def test_any_other_answer_is_final(answer: httpx.Response) -> None:
    """An environment's own 503 too: its receipt would answer every repeat."""
    Reply("counter", answer).require_final()


def test_cookies_are_passed_on_as_they_came() -> None:
    headers = [("set-cookie", 'a="x y"; Path=/'), ("set-cookie", "b=eyJ9==; HttpOnly")]
    reply = Reply("counter", httpx.Response(200, headers=headers))
    assert reply.cookies == {"a": '"x y"', "b": "eyJ9=="}
