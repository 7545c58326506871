"""What the agent does with lost answers, refusals and errors of the servers it calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.protocol import (
    ResumeRequest,
    ServerFault,
    SessionLost,
    SessionUncertain,
    StaleAttempt,
    TurnpointError,
)
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, ROW, Fleet, fleet, until
from tests.gym.test_agent_rollouts import files_of


class Meddling(httpx.AsyncBaseTransport):
    """Real HTTP, with answers lost or replaced by path (each entry once, in order)."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.refused: list[str] = []
        self.instead: dict[str, list[httpx.Response]] = {}
        self.sent: list[tuple[str, str | None, bytes]] = []
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.rpartition("/")[2]
        name = request.headers.get("x-turnpoint-request-id") or request.headers.get(
            "x-turnpoint-model-call-id"
        )
        self.sent.append((path, name, request.content))
        if path in self.refused:
            self.refused.remove(path)
            raise httpx.ConnectError("refused")
        if self.instead.get(path):
            return self.instead[path].pop(0)
        answer = await self._inner.handle_async_request(request)
        if path in self.lost:
            self.lost.remove(path)
            await answer.aread()
            await answer.aclose()
            raise httpx.ReadError("reset")
        return answer

    async def aclose(self) -> None:
        await self._inner.aclose()

    def with_id(self, name: str) -> list[bytes]:
        return [content for _, given, content in self.sent if given == name]


def typed(error: TurnpointError) -> httpx.Response:
    return httpx.Response(error.status, json=error.body())


def outputs(result: dict[str, Any]) -> list[str]:
    items = result["response"]["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


@pytest.mark.parametrize("fault", ["lost", "refused"])
async def test_a_call_whose_answer_was_lost_is_issued_again_and_has_one_effect(
    tmp_path: Path, fault: str
) -> None:
    meddling = Meddling()
    getattr(meddling, fault).extend(
        ["seed_session", "responses", "increment_counter", "responses", "verify"]
    )
    generation = FakeGeneration()
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        result, headers = await servers.run("p0_g0")
        assert (result["reward"], result["final_count"]) == (1.0, 18)
        assert json.loads(headers["x-turnpoint-resource-revisions"]) == {COUNTER: 7}
        for name in ("p0_g0/seed/0", "call-0", "p0_g0/call-0/0", "p0_g0/verify/0"):
            contents = meddling.with_id(name)
            assert len(contents) >= 2
            assert len(set(contents)) == 1
        assert len(generation.generated) == 6
        assert outputs(result) == ['{"success": true}'] * 5


async def resume_one(servers: Fleet, name: str) -> None:
    request = ResumeRequest(**servers.who(name), checkpoint_id="c1")
    await servers.client.resume(servers.urls[name], name, request)


@pytest.mark.parametrize("closed", [MODEL, COUNTER])
async def test_a_refusal_by_a_checkpoint_is_waited_out_and_never_shown(
    tmp_path: Path, closed: str
) -> None:
    generation, meddling = FakeGeneration(), Meddling()
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        await generation.hold_from(2)
        run = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-2")
        closing = asyncio.create_task(servers.prepare(closed))
        await asyncio.sleep(0.05)
        await generation.hold_from(None)
        assert (await closing).ready
        refused = "call-3" if closed == MODEL else "p0_g0/call-2/0"
        await until(lambda: len(meddling.with_id(refused)) >= 2)  # refused, and issued again
        status = await servers.status(AGENT)
        # A refused model call stands at its boundary; a step is part of a turn.
        assert status.counts.parked == (1 if closed == MODEL else 0)
        await resume_one(servers, closed)
        result, _ = await run
        assert result["final_count"] == 18
        assert outputs(result) == ['{"success": true}'] * 5
        assert len(set(meddling.with_id(refused))) == 1


async def test_an_agent_that_opens_issues_a_refused_call_at_once(tmp_path: Path) -> None:
    meddling = Meddling()
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        await servers.prepare(MODEL)
        run = asyncio.create_task(servers.run("p0_g0"))
        await until(lambda: bool(meddling.with_id("call-0")))
        refused_at = asyncio.get_running_loop().time()
        assert (await servers.prepare(AGENT)).ready
        await resume_one(servers, MODEL)
        await resume_one(servers, AGENT)
        await run
        assert asyncio.get_running_loop().time() - refused_at < 0.9  # retry-after is 1 s


async def test_a_closed_agent_calls_nobody(tmp_path: Path) -> None:
    generation, meddling = FakeGeneration(turns=2), Meddling()
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        await generation.hold_from(0)
        run = asyncio.create_task(servers.run("p0_g0"))
        for call, done in (("call-0", 3), ("call-1", 4)):  # before a model call, before verify
            await generation.until_waiting(call)
            closing = asyncio.create_task(servers.prepare(AGENT, call))
            await asyncio.sleep(0.05)
            assert not closing.done()
            await generation.hold_from(1 if call == "call-0" else None)
            assert (await closing).ready
            assert (await servers.status(AGENT)).counts.parked == 1
            await asyncio.sleep(0.1)
            assert len(meddling.sent) == done
            request = ResumeRequest(**servers.who(AGENT), checkpoint_id=call)
            await servers.client.resume(servers.urls[AGENT], AGENT, request)
        await run


async def test_the_next_run_ends_the_one_before_whatever_it_waits_for(tmp_path: Path) -> None:
    generation = FakeGeneration()
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        await generation.hold_from(0)
        old = asyncio.create_task(servers.run("p0_g0"))
        await generation.until_waiting("call-0")
        await servers.prepare(COUNTER)  # so that run 1 gets no further than its seed
        new = asyncio.create_task(servers.run("p0_g0", 1))
        with pytest.raises(StaleAttempt):
            await asyncio.wait_for(old, 5)
        await generation.hold_from(None)
        await resume_one(servers, COUNTER)
        assert (await new)[0]["final_count"] == 18


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda: httpx.Response(404, json={"detail": "Not Found"}), '{"detail":"Not Found"}'),
        (lambda: httpx.Response(500, text="ValueError('x')"), "ValueError('x')"),
        (lambda: httpx.Response(503, json={"detail": "no index"}), '{"detail":"no index"}'),
        (
            lambda: httpx.Response(409, json={"code": "checkpoint_parked", "why": "mine"}),
            '{"code":"checkpoint_parked","why":"mine"}',
        ),
    ],
)
async def test_what_an_environment_answers_is_shown_to_the_model(
    tmp_path: Path, answer: Callable[[], httpx.Response], shown: str
) -> None:
    """Break: gym/agent/peer.py: take each 503 for a gateway's; a receipt answers it for ever."""
    meddling = Meddling()
    meddling.instead["increment_counter"] = [answer()]
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        result, _ = await servers.run("p0_g0")
        assert outputs(result)[0] == shown
        assert len(meddling.with_id("p0_g0/call-0/0")) == 1


async def test_arguments_that_the_tool_refuses_are_shown_to_the_model(tmp_path: Path) -> None:
    generation = FakeGeneration(turns=4)
    odd = ['{"count": "many"}', "{", "true"]
    plain = generation._answer

    def answer(rollout_id: str, index: int, body: dict[str, Any]) -> dict[str, Any]:
        made = plain(rollout_id, index, body)
        if index < 3:
            made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = odd[index]
        return made

    generation._answer = answer  # type: ignore[method-assign]
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        result, _ = await servers.run("p0_g0")
        shown = [json.loads(text) for text in outputs(result)]
        assert shown[0]["code"] == shown[2]["code"] == "invalid_request"
        assert "Invalid tool call arguments" in shown[1]["error"]
        assert result["final_count"] == 3


async def test_a_gateway_error_is_no_answer(tmp_path: Path) -> None:
    meddling = Meddling()
    meddling.instead["increment_counter"] = [httpx.Response(503, text="draining")]
    meddling.instead["responses"] = [httpx.Response(502, text="bad gateway")]
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        result, _ = await servers.run("p0_g0")
        assert outputs(result) == ['{"success": true}'] * 5


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("increment_counter", SessionUncertain("the last mutation did not end")),
        ("verify", SessionLost("no such session")),
        ("responses", ServerFault("no coordinates")),
    ],
)
async def test_a_typed_error_fails_the_run_and_the_next_run_starts_over(
    tmp_path: Path, path: str, error: TurnpointError
) -> None:
    meddling, generation = Meddling(), FakeGeneration()
    meddling.instead[path] = [typed(error)]
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        for _ in range(2):  # kept, so that a caller that comes again hears the same
            with pytest.raises(type(error)):
                await servers.run("p0_g0")
        assert [answer.ready for answer in await servers.prepare_all()] == [True] * 3
        assert (await servers.status(AGENT)).counts.parked == 1
        answers = await servers.commit_all()
        lines = answers[AGENT].continuations
        assert [line.resource_state_revisions for line in lines] == [{COUNTER: -1}]
        await servers.resume_all()
        result, _ = await servers.run("p0_g0", 1)
        assert result["final_count"] == 18
        assert generation.calls_of("p0_g0")[-6:] == [f"p0_g0-a1/call-{k}" for k in range(6)]
    async with fleet(tmp_path, FakeGeneration(), expect_restore=True) as restored:
        await restored.join(2)
        await restored.restore_all(files_of(answers))
        await restored.resume_all("r1")
        with pytest.raises(type(error)):
            await restored.run("p0_g0", 1)
        result, _ = await restored.run("p0_g0", 2)
        assert result["final_count"] == 18


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("responses", '{"output": "s3cret"}'),
        ("responses", "[]"),
        ("verify", '{"reward": NaN, "x": "s3cret"}'),
        ("verify", '{"reward": 1, "x": "s3cret \\ud800"}'),
        ("verify", '"s3cret"'),
        ("seed_session", '{"detail": "s3cret"}'),
    ],
)
async def test_an_answer_of_the_wrong_shape_fails_the_run_without_quoting_it(
    tmp_path: Path, path: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    meddling = Meddling()
    status = 400 if path == "seed_session" else 200
    meddling.instead[path] = [httpx.Response(status, text=text)]
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        with pytest.raises(ServerFault) as caught:
            await servers.run("p0_g0")
        assert "s3cret" not in str(caught.value) + caplog.text


async def test_bad_rows_are_refused_and_begin_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path, FakeGeneration()) as servers:
        await servers.join()
        for row in ({"x": 1}, {"responses_create_params": {"input": 5}}):
            with pytest.raises(TurnpointError, match="invalid_request"):
                await servers.run("p0_g0", row=row)
        assert (await servers.run("p0_g0", row=ROW))[0]["final_count"] == 18
