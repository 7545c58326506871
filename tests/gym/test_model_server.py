"""The model server alone: admission, ledger, the same call twice, an endpoint that dies."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from gym.model.generation_client import GenerationEndpoint
from gym.model.server import ModelServerSettings, create_model_app
from gym.protocol import (
    Identity,
    NotJoined,
    Role,
    ServerFault,
    ServerUnreachable,
    StaleAttempt,
    TurnpointError,
)
from gym.protocol.control import BASE_PATH
from tests.gym.fake_generation import FakeGeneration

AUTH = {"authorization": "Bearer secret"}
BODY = {"input": "hello"}


class Server:
    """One model server without sockets, and its endpoint, which can be cut off."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.generation = FakeGeneration()
        self.down = 0
        self.root = root
        self.ids: dict[str, Any] = {}
        given = ModelServerSettings(
            name="policy_model",
            port=1,
            snapshot_root=root,
            control_token=SecretStr("secret"),
            generation_url="http://generation/v1",
            **settings,
        )
        inner = httpx.ASGITransport(self.generation.app())
        server = self

        class Cuts(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if server.down > 0:
                    server.down -= 1
                    raise httpx.ConnectError("refused")
                return await inner.handle_async_request(request)

        endpoint = GenerationEndpoint(
            "http://generation/v1", participant="policy_model", transport=Cuts()
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_model_app(given, endpoint)),
            base_url="http://model",
        )

    async def control(self, operation: str, **fields: Any) -> httpx.Response:
        body = self.ids | fields
        return await self.http.post(f"{BASE_PATH}/{operation}", json=body, headers=AUTH)

    async def join(self) -> None:
        answer = (await self.control("join", job_id="job", incarnation=1)).json()
        self.ids = {"incarnation": 1, "instance_id": answer["instance_id"]}

    async def prepare(self, **fields: Any) -> httpx.Response:
        given = {"checkpoint_id": "c1", "budget_s": 5, "lease_s": 30} | fields
        return await self.control("prepare", **given)

    async def call(
        self, index: int = 0, *, rollout: str = "p0_g0", attempt: int = 0, body: Any = None
    ) -> httpx.Response:
        identity = Identity(incarnation=1, rollout_id=rollout, attempt=attempt).call(index)
        return await self.http.post("/v1/responses", json=body or BODY, headers=identity.headers())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path, extra_body={"tool_choice": "required", "temperature": 0.3})
    yield made
    await made.http.aclose()


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


async def test_the_same_call_again_is_one_call(server: Server) -> None:
    await server.join()
    server.generation.delay_s = 0.1
    together = await asyncio.gather(server.call(), server.call())
    later = await server.call()
    assert together[0].json() == together[1].json() == later.json()
    assert server.generation.generated == ["1/p0_g0/call-0"]
    other = await server.call(body={"input": "something else"})
    assert (other.status_code, other.json()["code"]) == (409, "request_conflict")
    # The second call joined the first, the third was answered from the endpoint's row, and the
    # fourth went nowhere.
    assert len(server.generation.asked) == 2


async def test_a_call_whose_caller_left_still_gets_its_row(server: Server) -> None:
    await server.join()
    await server.generation.hold_from(0)
    left = asyncio.create_task(server.call())
    await server.generation.until_waiting("call-0")
    left.cancel()
    await asyncio.sleep(0)
    await server.generation.hold_from(None)
    assert (await server.prepare()).json()["ready"]
    assert (await server.control("resume", checkpoint_id="c1")).status_code == 200
    assert (await server.call(1)).status_code == 200
    assert server.generation.generated == ["1/p0_g0/call-0", "1/p0_g0/call-1"]


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


async def test_a_call_without_identity_is_held_while_closed(server: Server) -> None:
    await server.join()
    await server.prepare()
    held = asyncio.create_task(server.http.post("/v1/responses", json=BODY))
    await asyncio.sleep(0.05)
    assert not held.done()
    await server.control("resume", checkpoint_id="c1")
    assert (await held).status_code == 200
    assert server.generation.generated == []


async def test_prepare_waits_for_the_call_under_way(server: Server) -> None:
    await server.join()
    await server.generation.hold_from(0)
    call = asyncio.create_task(server.call())
    await server.generation.until_waiting("call-0")
    early = (await server.prepare(budget_s=0.05)).json()
    assert not early["ready"]
    assert [b["where"] for b in early["blockers"]] == ["model_call"]
    assert early["counts"]["in_flight"] == 1
    await server.generation.hold_from(None)
    assert (await server.prepare()).json()["ready"]
    assert (await call).status_code == 200


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


async def test_a_newer_run_ends_the_older_ones_call_and_rows(server: Server) -> None:
    await server.join()
    await server.call()
    await server.generation.hold_from(1)
    old = asyncio.create_task(server.call(1))
    await server.generation.until_waiting("call-1")
    assert (await server.call(0, attempt=1)).status_code == 200
    assert (await old).json()["code"] == "stale_attempt"
    await server.generation.hold_from(None)
    assert (await server.call(1)).json()["code"] == "stale_attempt"
    await server.prepare()
    assert (await server.call(1)).json()["code"] == "stale_attempt"
    assert (await server.call(1, attempt=1)).json()["code"] == "checkpoint_parked"
    path = "/training-token-capture/control/rollouts/{}/manifest"
    gone = await server.http.get(path.format("p0_g0"), headers=AUTH)
    assert (gone.status_code, gone.json()["code"]) == (410, "session_lost")
    rows = (await server.http.get(path.format("p0_g0-a1"), headers=AUTH)).json()["records"]
    assert [row["capture_key"] for row in rows] == ["p0_g0-a1"]


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


async def test_a_commit_without_a_known_call_or_with_a_damaged_index_fails(
    server: Server, tmp_path: Path
) -> None:
    await server.join()
    await server.call()
    await server.prepare()
    folder = tmp_path / "job" / "tmp_snapshot_000001-c1"
    index = folder / "gym" / "simple_agent" / "continuations.jsonl"
    index.parent.mkdir(parents=True)
    line = {
        "schema_version": 1,
        "rollout_id": "p0_g0",
        "attempt_index": 0,
        "capture_key": "p0_g0",
        "last_committed_model_call_id": "call-1",
        "resource_state_revisions": {},
    }
    index.write_text(json.dumps(line) + "\n")

    def reference() -> dict[str, Any]:
        data = index.read_bytes()
        return {
            "path": "gym/simple_agent/continuations.jsonl",
            "bytes": len(data),
            "records": 1,
            "sha256": hashlib.sha256(data).hexdigest(),
        }

    async def commit(file: dict[str, Any]) -> httpx.Response:
        return await server.control(
            "commit",
            checkpoint_id="c1",
            budget_s=5,
            folder=str(folder),
            continuation_indexes=[file],
        )

    unknown = await commit(reference())
    assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_request")
    assert unknown.json()["details"]["model_call_id"] == "call-1"
    index.write_text(json.dumps(line | {"last_committed_model_call_id": "call-0"}) + "\n")
    good = reference()
    damaged = await commit(good | {"sha256": "0" * 64})
    assert damaged.json()["code"] == "digest_mismatch"
    written = await commit(good)
    assert [file["path"] for file in written.json()["files"]] == [
        "gym/policy_model/ledger.parquet",
        "gym/policy_model/token_storage_index.parquet",
    ]
    assert written.json()["storage"] == [
        {"rollout_id": "p0_g0", "model_call_id": "call-0", "key": "1/p0_g0/call-0"}
    ]


async def test_an_auxiliary_server_never_closes_and_keeps_nothing(tmp_path: Path) -> None:
    judge = Server(tmp_path, role=Role.AUXILIARY)
    await judge.join()
    assert (await judge.prepare()).json()["ready"]
    assert (await judge.http.post("/v1/responses", json=BODY)).status_code == 200
    assert (await judge.call()).json()["code"] == "identity_mismatch"
    folder = tmp_path / "job" / "tmp_snapshot_000001-c1"
    (folder / "gym").mkdir(parents=True)
    answer = await judge.control("commit", checkpoint_id="c1", budget_s=5, folder=str(folder))
    assert answer.json()["files"] == []
    await judge.http.aclose()


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
