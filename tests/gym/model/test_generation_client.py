"""Calls of the generation endpoint: repeated, refused for good, without coordinates."""

from __future__ import annotations

import httpx
import pytest

from gym.model.generation_client import GenerationEndpoint
from gym.protocol import (
    Identity,
    NotJoined,
    ServerFault,
    ServerUnreachable,
    StaleAttempt,
    TurnpointError,
)
from tests.gym.model_server import Server


async def test_an_endpoint_that_is_down_or_fails_is_called_again(server: Server) -> None:
    await server.join()
    server.down, server.generation.failing = 2, 2
    assert (await server.call()).status_code == 200
    assert len(server.generation.asked) == 3
    assert server.generation.generated == ["1/p0_g0/call-0"]


async def test_what_the_endpoint_refuses_for_good_is_not_repeated(server: Server) -> None:
    await server.join()
    await server.call()
    server.generation.rows["1/p0_g0/call-1"] = ("another request", {})
    answer = await server.call(1)
    assert (answer.status_code, answer.json()["code"]) == (409, "request_conflict")
    assert len(server.generation.asked) == 2


def endpoint_answering(*answers: httpx.Response) -> GenerationEndpoint:
    left = list(answers)
    transport = httpx.MockTransport(lambda _: left.pop(0))
    return GenerationEndpoint("http://g/v1", participant="policy_model", transport=transport)


@pytest.mark.parametrize(
    "words", ["This model's maximum context length is 8", "longer than the maximum model length"]
)
async def test_a_prompt_that_does_not_fit_has_no_row_and_ends_as_incomplete(words: str) -> None:
    endpoint = endpoint_answering(httpx.Response(400, json={"error": {"message": words}}))
    completion = await endpoint.complete({"messages": []}, None, None)
    assert completion.coordinates is None
    assert completion.chat["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(400, text="s3cret"), "invalid_request"),
        (httpx.Response(502, json=ServerFault("no token ids").body()), "server_fault"),
        (httpx.Response(409, json=StaleAttempt("another incarnation").body()), "stale_attempt"),
        (httpx.Response(200, json={"choices": []}), "server_fault"),
        (httpx.Response(200, json={"turnpoint": {"key": "s3cret"}}), "server_fault"),
        (httpx.Response(200, text="s3cret"), "server_fault"),
    ],
)
async def test_refusals_for_good_end_the_call_without_a_quote(
    answer: httpx.Response, code: str
) -> None:
    identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).call(0)
    with pytest.raises(TurnpointError) as caught:
        await endpoint_answering(answer).complete({"messages": []}, identity, None)
    assert caught.value.code == code
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "passing",
    [
        httpx.Response(500, text="Internal Server Error"),
        httpx.Response(503, json=ServerUnreachable("the policy is down").body()),
        httpx.Response(429),
        httpx.Response(409, json=NotJoined("not yet").body()),
    ],
)
async def test_what_may_pass_is_asked_again(passing: httpx.Response) -> None:
    endpoint = endpoint_answering(passing, httpx.Response(200, json={"id": "x"}))
    assert (await endpoint.complete({"messages": []}, None, None)).chat == {"id": "x"}
