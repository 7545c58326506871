"""The generation endpoint with a policy and a data plane of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gym.protocol import HEADER_PARENT_KEY, Identity, StagingCoordinates
from rl.data_plane.rows import StagingRow
from rl.errors import DataPlaneLost
from rl.generation.app import Generation, create_app, seed_of
from rl.policies.scripted import Script, completion

IDENTITY = Identity(incarnation=1, rollout_id="p0_g0", attempt=0, model_call_id="call-0")
KEY = "1/p0_g0/call-0"
CHAT = {"model": "anything", "messages": [{"role": "user", "content": "hello"}]}


class Plane:
    """Rows in a dict; puts wait for `gate`."""

    def __init__(self) -> None:
        self.rows: dict[str, StagingRow] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.lost = False

    async def put_staging(self, key: str, row: StagingRow) -> None:
        await self.gate.wait()
        if self.lost:
            raise DataPlaneLost("gone")
        self.rows[key] = row

    async def get_staging(self, keys: list[str]) -> dict[str, StagingRow]:
        return {key: self.rows[key] for key in keys if key in self.rows}


class Policy:
    """The scripted policy behind a counter and a gate."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuse: Callable[[httpx.Request], httpx.Response] | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        await self.gate.wait()
        if self.refuse is not None:
            return self.refuse(request)
        rollout = request.headers.get("x-turnpoint-rollout-id", "anonymous")
        call = request.headers.get("x-turnpoint-model-call-id", "call-0")
        number = int(call.removeprefix("call-"))
        return httpx.Response(
            200, json=completion(Script(), json.loads(request.content), rollout, number)
        )


@asynccontextmanager
async def endpoint(policy: Policy, plane: Plane) -> AsyncIterator[httpx.AsyncClient]:
    generation = Generation(
        plane,
        incarnation=1,
        policy_url="http://policy/v1",
        policy_model="policy",
        weight_version="v1",
        transport=httpx.MockTransport(policy),
    )
    transport = httpx.ASGITransport(create_app(generation))
    async with httpx.AsyncClient(transport=transport, base_url="http://generation") as http:
        yield http
    await generation.aclose()


async def ask(
    http: httpx.AsyncClient, identity: Identity | None = IDENTITY, chat: Any = CHAT, **headers: str
) -> httpx.Response:
    named = (identity.headers() if identity else {}) | headers
    return await http.post("/v1/chat/completions", json=chat, headers=named)


async def test_the_row_is_staged_and_the_answer_holds_no_tokens() -> None:
    policy, plane = Policy(), Plane()
    async with endpoint(policy, plane) as http:
        answer = (await ask(http, **{HEADER_PARENT_KEY: "1/p0_g0/call-9"})).json()
    row = plane.rows[KEY]
    coordinates = StagingCoordinates.model_validate(answer.pop("turnpoint"))
    assert coordinates == row.coordinates(KEY)
    assert coordinates.parent_key == "1/p0_g0/call-9"
    assert coordinates.weight_version == "v1"
    assert json.loads(row.response) == answer
    assert coordinates.generation_length == len(row.generation_ids) > 0
    text = json.dumps(answer)
    assert "token_ids" not in text
    assert "logprob" not in text
    [request] = policy.requests
    sent = json.loads(request.content)
    assert sent["return_token_ids"]
    assert sent["logprobs"]
    assert sent["model"] == "policy"
    assert sent["seed"] == seed_of("p0_g0", "call-0")
    assert request.headers["x-turnpoint-rollout-id"] == "p0_g0"


async def test_nothing_is_answered_before_the_row_is_there() -> None:
    policy, plane = Policy(), Plane()
    plane.gate.clear()
    async with endpoint(policy, plane) as http:
        call = asyncio.create_task(ask(http))
        done, _ = await asyncio.wait([call], timeout=0.1)
        assert not done
        plane.gate.set()
        assert (await call).status_code == 200


async def test_the_same_call_joins_and_is_answered_from_the_row() -> None:
    policy, plane = Policy(), Plane()
    policy.gate.clear()
    async with endpoint(policy, plane) as http:
        calls = [asyncio.create_task(ask(http)) for _ in range(5)]
        await asyncio.wait(calls, timeout=0.1)
        policy.gate.set()
        answers = {(await call).content for call in calls}
        assert len(answers) == len(policy.requests) == 1
        assert (await ask(http)).content in answers
    async with endpoint(policy, plane) as http:  # another life of the endpoint
        assert (await ask(http)).content in answers
    assert len(policy.requests) == 1


async def test_a_caller_that_hangs_up_ends_nothing() -> None:
    policy, plane = Policy(), Plane()
    policy.gate.clear()
    async with endpoint(policy, plane) as http:
        first = asyncio.create_task(ask(http))
        await asyncio.wait([first], timeout=0.1)
        first.cancel()
        second = asyncio.create_task(ask(http))
        await asyncio.wait([second], timeout=0.1)
        policy.gate.set()
        assert (await second).status_code == 200
    assert len(policy.requests) == 1


async def test_another_request_under_the_key_is_refused() -> None:
    policy, plane = Policy(), Plane()
    policy.gate.clear()
    other = CHAT | {"temperature": 0.5}
    async with endpoint(policy, plane) as http:
        running = asyncio.create_task(ask(http))
        await asyncio.wait([running], timeout=0.1)
        refused = await ask(http, chat=other)
        policy.gate.set()
        await running
        assert (refused.status_code, refused.json()["code"]) == (409, "request_conflict")
        refused = await ask(http, chat=other)
        assert (refused.status_code, refused.json()["code"]) == (409, "request_conflict")
        # The order of keys is no difference.
        assert (await ask(http, chat=dict(reversed(CHAT.items())))).status_code == 200
    assert len(policy.requests) == 1


@pytest.mark.parametrize(
    ("update", "code"),
    [({"incarnation": 2}, "stale_attempt"), ({"request_id": "x"}, "identity_mismatch")],
)
async def test_foreign_calls_are_refused(update: dict[str, Any], code: str) -> None:
    """Invariant 7. Break: rl/generation/app.py: admit any incarnation; seen red."""
    policy, plane = Policy(), Plane()
    async with endpoint(policy, plane) as http:
        refused = await ask(http, IDENTITY.model_copy(update=update))
        assert (refused.status_code, refused.json()["code"]) == (409, code)
        inner = {"model_call_id": None, "request_id": "p0_g0/verify/0", "incarnation": 2}
        refused = await ask(http, IDENTITY.model_copy(update=inner))
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_attempt")
    assert policy.requests == []


async def test_a_policy_that_is_down_is_a_503_and_the_call_can_come_again() -> None:
    policy, plane = Policy(), Plane()

    def dead(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with endpoint(policy, plane) as http:
        for refuse in (dead, lambda _: httpx.Response(500), lambda _: httpx.Response(429)):
            policy.refuse = refuse
            answer = await ask(http)
            assert (answer.status_code, answer.json()["code"]) == (503, "server_unreachable")
        policy.refuse = None
        assert (await ask(http)).status_code == 200


async def test_a_lost_data_plane_is_a_503() -> None:
    policy, plane = Policy(), Plane()
    plane.lost = True
    async with endpoint(policy, plane) as http:
        answer = await ask(http)
    assert (answer.status_code, answer.json()["code"]) == (503, "data_plane_lost")


async def test_a_refusal_of_the_policy_is_handed_on() -> None:
    policy, plane = Policy(), Plane()
    body = {"error": {"message": "maximum context length"}}
    policy.refuse = lambda _: httpx.Response(400, json=body)
    async with endpoint(policy, plane) as http:
        answer = await ask(http)
    assert (answer.status_code, answer.json()) == (400, body)
    assert plane.rows == {}


async def test_an_answer_without_tokens_is_a_fault() -> None:
    policy, plane = Policy(), Plane()
    policy.refuse = lambda _: httpx.Response(200, json={"choices": [{"message": {}}]})
    async with endpoint(policy, plane) as http:
        answer = await ask(http)
    assert (answer.status_code, answer.json()["code"]) == (502, "server_fault")


def _set(place: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(answer: dict[str, Any]) -> None:
        part: Any = answer
        *path, last = place.split(".")
        for name in path:
            part = part[int(name) if name.isdecimal() else name]
        part[last] = value

    return change


@pytest.mark.parametrize(
    "odd",
    [
        _set("prompt_token_ids", None),
        _set("prompt_token_ids", ["12"]),
        _set("prompt_token_ids", [1 << 40]),
        _set("choices", []),
        _set("choices", [None]),
        _set("choices.0.token_ids", None),
        _set("choices.0.token_ids", [0.5]),
        _set("choices.0.logprobs", None),
        _set("choices.0.logprobs", {"content": []}),
    ],
)
async def test_an_answer_that_makes_no_row_is_a_fault_and_not_asked_for_again(
    odd: Callable[[dict[str, Any]], object],
) -> None:
    """Another status than a typed fault is taken for one that passes: the call would never end.

    Break: rl/generation/app.py: build the row, and find out what it lacks when it is staged.
    """
    policy, plane = Policy(), Plane()

    def answer(request: httpx.Request) -> httpx.Response:
        body = completion(Script(), json.loads(request.content), "p0_g0", 0)
        body["choices"][0]["token_ids"] = body["choices"][0]["token_ids"][:1]
        content = body["choices"][0]["logprobs"]["content"]
        body["choices"][0]["logprobs"]["content"] = content[:1]
        odd(body)
        return httpx.Response(200, json=body)

    policy.refuse = answer
    async with endpoint(policy, plane) as http:
        refused = await ask(http)
    assert (refused.status_code, refused.json()["code"]) == (502, "server_fault")
    assert plane.rows == {}


async def test_calls_without_a_model_call_id_are_passed_through() -> None:
    policy, plane = Policy(), Plane()
    inner = {"model_call_id": None, "request_id": "p0_g0/verify/0"}
    async with endpoint(policy, plane) as http:
        for identity in (None, IDENTITY.model_copy(update=inner)):
            answer = await ask(http, identity)
            assert answer.status_code == 200
            assert "turnpoint" not in answer.json()
    assert plane.rows == {}
    assert "seed" not in json.loads(policy.requests[0].content)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"stream": true}', b'{"n": 2}'])
async def test_bodies_that_cannot_be_staged_are_refused(body: bytes) -> None:
    async with endpoint(Policy(), Plane()) as http:
        answer = await http.post("/v1/chat/completions", content=body, headers=IDENTITY.headers())
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert (await http.get("/health")).json() == {"status": "ok"}
