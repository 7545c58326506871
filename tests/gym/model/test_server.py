"""Routes of the model server: ledger, admission, shapes."""

from __future__ import annotations

import asyncio

import pytest

from gym.protocol import (
    Identity,
)
from gym.protocol.control import BASE_PATH
from tests.gym.model_server import AUTH, BODY, Server


async def test_the_ledger_row_is_there_before_the_answer(server: Server) -> None:
    await server.join()
    answer = await server.call()
    assert answer.status_code == 200
    assert answer.headers["x-turnpoint-model-call-id"] == "call-0"
    assert "turnpoint" not in answer.json()
    path = "/training-token-capture/control/rollouts/p0_g0/manifest"
    assert (await server.http.get(path)).status_code == 401
    manifest = (await server.http.get(path, headers=AUTH)).json()
    assert [row["coordinates"]["key"] for row in manifest["records"]] == ["1/p0_g0/call-0"]
    sent, headers = server.generation.asked[0]
    assert sent["temperature"] == 0.3
    assert "tool_choice" not in sent
    assert headers["x-turnpoint-rollout-id"] == "p0_g0"
    assert "x-turnpoint-parent-key" not in headers
    await server.call(1)
    assert server.generation.asked[1][1]["x-turnpoint-parent-key"] == "1/p0_g0/call-0"


async def test_a_closed_server_refuses_with_retry_after_and_lets_inner_calls_in(
    server: Server,
) -> None:
    before = await server.call()
    assert before.json()["code"] == "not_joined"
    await server.join()
    assert (await server.prepare()).json()["ready"]
    refused = await server.call()
    assert (refused.status_code, refused.json()["code"]) == (409, "checkpoint_parked")
    assert float(refused.headers["retry-after"]) > 0
    step = Identity(incarnation=1, rollout_id="p0_g0", attempt=0, request_id="p0_g0/call-0/0")
    inner = await server.http.post("/v1/responses", json=BODY, headers=step.headers())
    assert inner.status_code == 200
    status = await server.http.get(f"{BASE_PATH}/status", params=server.ids, headers=AUTH)
    assert status.json()["counts"]["ledger_rows"] == 0
    assert server.generation.generated == []


async def test_a_call_without_identity_waits_while_closed(server: Server) -> None:
    await server.join()
    await server.prepare()
    held = asyncio.create_task(server.http.post("/v1/responses", json=BODY))
    await asyncio.sleep(0.05)
    assert not held.done()
    await server.control("resume", checkpoint_id="c1")
    assert (await held).status_code == 200
    assert server.generation.generated == []


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"attempt": "1"}, "identity_mismatch"),
        ({}, "identity_mismatch"),
        ({"model-call-id": "call-0", "request-id": "x"}, "identity_mismatch"),
        ({"incarnation": "2", "model-call-id": "call-0"}, "stale_attempt"),
        ({"model-call-id": "call-2"}, "identity_mismatch"),
    ],
)
async def test_headers_that_do_not_fit_are_refused(
    server: Server, headers: dict[str, str], code: str
) -> None:
    await server.join()
    if headers != {"attempt": "1"}:
        headers = {"incarnation": "1", "rollout-id": "p0_g0", "attempt": "0"} | headers
    answer = await server.http.post(
        "/v1/responses",
        json=BODY,
        headers={f"X-Turnpoint-{name}": value for name, value in headers.items()},
    )
    assert (answer.status_code, answer.json()["code"]) == (409, code)
    assert server.generation.asked == []


async def test_chat_completions_are_served_in_their_own_shape(server: Server) -> None:
    await server.join()
    identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).call(0)
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m"}
    answer = await server.http.post("/v1/chat/completions", json=body, headers=identity.headers())
    assert answer.json()["object"] == "chat.completion"
    assert "turnpoint" not in answer.json()
    stream = await server.http.post("/v1/chat/completions", json=body | {"stream": True})
    assert stream.status_code == 422
    for broken in (b"{", b"[]", b'{"x": NaN}'):
        assert (await server.http.post("/v1/responses", content=broken)).status_code == 422
