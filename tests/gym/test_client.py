"""The client of the control routes: what it sends, and the error behind each kind of answer."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from pydantic import SecretStr

from gym.client import CALL_S, GymClient
from gym.protocol import (
    CheckpointParked,
    Identity,
    OtherServer,
    PrepareRequest,
    ServerFault,
    ServerUnreachable,
    StaleCheckpoint,
    StatusRequest,
    TurnpointError,
)

URL = "http://server:1/"
WHO = {"server": "counter", "instance_id": "i", "incarnation": 1, "phase": "open"}
STATUS = {
    **WHO, "checkpoint_id": None, "lease_left_s": None, "counts": {}, "blockers": [],
    "blocker_count": 0,
}  # fmt: skip
ASKED = StatusRequest(incarnation=1, instance_id="i")


class Server:
    """Answers one response, and keeps the requests."""

    def __init__(self, answer: Callable[[], httpx.Response]) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answer()


def client_of(server: Callable[[httpx.Request], httpx.Response]) -> GymClient:
    return GymClient(SecretStr("token"), transport=httpx.MockTransport(server))


async def failure(answer: Callable[[], httpx.Response]) -> TurnpointError:
    async with client_of(Server(answer)) as client:
        with pytest.raises(TurnpointError) as raised:
            await client.status(URL, "counter", ASKED)
    return raised.value


async def test_a_status_is_asked_by_query_and_a_prepare_by_body_both_with_the_token() -> None:
    server = Server(lambda: httpx.Response(200, json=STATUS))
    prepare = PrepareRequest(
        incarnation=1, instance_id="i", checkpoint_id="ck", budget_s=7, lease_s=30
    )
    async with client_of(server) as client:
        assert (await client.status(URL, "counter", prepare)).server == "counter"
        with pytest.raises(ServerFault):  # a status is no answer of `prepare`
            await client.prepare(URL, "counter", prepare)
    status, prepared = server.requests
    assert str(status.url) == "http://server:1/checkpoint/v1/status?incarnation=1&instance_id=i"
    assert str(prepared.url) == "http://server:1/checkpoint/v1/prepare"
    assert json.loads(prepared.content) == prepare.model_dump(mode="json")
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer token"}
    assert status.extensions["timeout"]["read"] == CALL_S
    assert prepared.extensions["timeout"]["read"] > 7


async def test_a_run_carries_its_identity_and_no_token_and_waits_without_limit() -> None:
    server = Server(lambda: httpx.Response(200, json={"reward": 1.0}, headers={"x-a": "b"}))
    identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
    async with client_of(server) as client:
        result, headers = await client.run(URL, "agent", identity, {"row": 1})
    [request] = server.requests
    assert (json.loads(result), headers["x-a"]) == ({"reward": 1.0}, "b")
    assert "authorization" not in request.headers
    assert request.headers["x-turnpoint-rollout-id"] == "p0_g0"
    assert request.extensions["timeout"]["read"] is None


async def test_a_typed_refusal_is_its_error() -> None:
    refusal = StaleCheckpoint("over", details={"id": "ck"})
    error = await failure(lambda: httpx.Response(refusal.status, json=refusal.body()))
    assert isinstance(error, StaleCheckpoint)
    assert (error.participant, error.details) == ("counter", {"id": "ck"})
    parked = CheckpointParked("closed")
    assert (await failure(lambda: httpx.Response(409, json=parked.body()))).retryable


@pytest.mark.parametrize("body", ["bad gateway", {"detail": "bad gateway"}])
@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_gateways_answer_is_no_answer(status: int, body: object) -> None:
    """Break: gym/client.py: leave `gateway_error` out."""
    assert isinstance(await failure(lambda: httpx.Response(status, json=body)), ServerUnreachable)


async def test_a_lost_connection_is_no_answer() -> None:
    def lost() -> httpx.Response:
        raise httpx.ReadTimeout("lost")

    error = await failure(lost)
    assert isinstance(error, ServerUnreachable)
    assert error.details == {"path": "/checkpoint/v1/status"}


@pytest.mark.parametrize(
    ("status", "body"), [(404, {"detail": "Not Found"}), (500, "secret words"), (503, {"code": 1})]
)
async def test_any_other_failure_is_a_fault_with_its_status_and_without_its_text(
    status: int, body: object
) -> None:
    error = await failure(lambda: httpx.Response(status, json=body))
    assert isinstance(error, ServerFault)
    assert error.details == {"http": status} and "secret words" not in str(error)


@pytest.mark.parametrize("content", [b"no json", b'{"server": "counter"}'])
async def test_an_answer_of_another_shape_is_a_fault(content: bytes) -> None:
    assert isinstance(await failure(lambda: httpx.Response(200, content=content)), ServerFault)


async def test_another_server_at_the_url_is_named() -> None:
    error = await failure(lambda: httpx.Response(200, json={**STATUS, "server": "other"}))
    assert isinstance(error, OtherServer) and error.details == {"answered": "other"}
