"""Callers without identity: served while a server is open, held while it is not, never saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from gym.protocol import (
    Identity,
    Phase,
    ResumeRequest,
)
from gym.server.anonymous_calls import wait_until_open
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, MODEL, NAMES, ROW, Fleet, fleet, until
from tests.gym.parts import participant_in

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    MODEL: ("/v1/responses", {"input": "hello"}),
    AGENT: ("/run", ROW),
    COUNTER: ("/seed_session", ROW),
}
every_server = pytest.mark.parametrize("name", NAMES)


@asynccontextmanager
async def joined(root: Path) -> AsyncIterator[tuple[Fleet, httpx.AsyncClient]]:
    async with (
        fleet(root, FakeGeneration()) as servers,
        httpx.AsyncClient(timeout=20, trust_env=False) as http,
    ):
        await servers.join()
        yield servers, http


def call(servers: Fleet, http: httpx.AsyncClient, name: str) -> asyncio.Task[httpx.Response]:
    path, body = CALLS[name]
    return asyncio.create_task(http.post(servers.urls[name] + path, json=body))


async def resume(servers: Fleet, name: str) -> None:
    request = ResumeRequest(**servers.who(name), checkpoint_id="c1")
    await servers.client.resume(servers.urls[name], name, request)


def said(caplog: pytest.LogCaptureFixture, state: str) -> list[str]:
    return [
        record.where  # type: ignore[attr-defined]
        for record in caplog.records
        if getattr(record, "event", "") == "held" and getattr(record, "state", "") == state
    ]


@every_server
async def test_a_call_without_identity_is_held_until_resume_and_is_not_in_flight(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Break: serve it while the server is closed, or count it while it is held."""
    caplog.set_level(logging.INFO, "turnpoint.gym")
    async with joined(tmp_path) as (servers, http):
        await servers.prepare(name)
        held = call(servers, http, name)
        await until(lambda: len(said(caplog, "begin")) == 1)
        await asyncio.sleep(0.05)
        status = await servers.status(name)
        assert not held.done()
        assert (status.phase, status.counts.in_flight, status.blockers) == (Phase.PREPARED, 0, [])
        await resume(servers, name)
        answer = await held
        assert answer.status_code == 200, answer.text
        assert said(caplog, "end") == said(caplog, "begin")


@every_server
async def test_a_save_that_begins_while_it_is_held_elsewhere_gets_ready(
    name: str, tmp_path: Path
) -> None:
    async with joined(tmp_path) as (servers, http):
        await servers.prepare(name)
        held = call(servers, http, name)
        answers = await servers.prepare_all()
        assert all(answer.ready for answer in answers)
        await servers.resume_all()
        assert (await held).status_code == 200


@every_server
async def test_a_held_call_whose_caller_hangs_up_is_dropped(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Break: let `wait_until_open` wait for the opening alone."""
    caplog.set_level(logging.INFO, "turnpoint.gym")
    async with joined(tmp_path) as (servers, http):
        await servers.prepare(name)
        held = call(servers, http, name)
        await until(lambda: len(said(caplog, "begin")) == 1)
        held.cancel()
        await until(lambda: len(said(caplog, "dropped")) == 1)
        await resume(servers, name)
        await asyncio.sleep(0.1)
        assert servers.generation.asked == []
        assert [record for record in caplog.records if record.message == "mutation"] == []
        assert [record for record in caplog.records if record.message == "fault"] == []


@pytest.mark.parametrize("name", [MODEL, AGENT])
async def test_what_a_caller_without_identity_left_behind_keeps_no_save_waiting(
    name: str, tmp_path: Path
) -> None:
    """The policy cannot serve it, so it would be issued again for ever.

    Break: gym/server/anonymous_calls.py: let `while_connected` go on without its caller.
    """
    async with joined(tmp_path) as (servers, http):
        servers.generation.failing = 1_000_000
        left = call(servers, http, name)
        await until(lambda: len(servers.generation.asked) > 1)
        left.cancel()
        assert (await servers.prepare(MODEL, budget_s=3)).ready


@every_server
async def test_identity_mixed_in_is_a_mismatch_and_not_held(name: str, tmp_path: Path) -> None:
    async with joined(tmp_path) as (servers, http):
        await servers.prepare(name)
        path, body = CALLS[name]
        headers = {"x-turnpoint-rollout-id": "p0_g0"}
        answer = await http.post(servers.urls[name] + path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "identity_mismatch")


async def test_a_call_before_the_join_is_held_until_it(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path, FakeGeneration()) as servers,
        httpx.AsyncClient(timeout=20, trust_env=False) as http,
    ):
        held = [call(servers, http, name) for name in NAMES]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in held)
        await servers.join()
        assert {(await task).status_code for task in held} == {200}


@pytest.mark.parametrize("steps", range(5))
async def test_a_held_call_never_goes_on_in_a_server_that_is_closed_again(
    steps: int, tmp_path: Path
) -> None:
    """However many steps of the loop the server was open for.

    Break: go on when `wait_open` has returned, without looking again.
    """
    participant, _, caller = await participant_in(Phase.PREPARED, tmp_path)
    never, seen = asyncio.Event(), list[bool]()

    async def held() -> None:
        await wait_until_open(participant.phases, "tool", never.wait)
        seen.append(participant.phases.is_open)

    task = asyncio.create_task(held())
    await asyncio.sleep(0.01)
    participant.save.resume(caller.resume())
    for _ in range(steps):
        await asyncio.sleep(0)
    assert (await participant.save.prepare(caller.prepare("ck2"))).ready
    await asyncio.sleep(0.05)
    assert False not in seen
    participant.save.resume(caller.resume("ck2"))
    await task
    assert seen == [True]


async def test_a_caller_that_left_in_the_instant_of_the_opening_is_dropped(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.PREPARED, tmp_path)
    left = asyncio.Event()
    held = asyncio.create_task(wait_until_open(participant.phases, "tool", left.wait))
    await asyncio.sleep(0.01)
    left.set()
    await asyncio.sleep(0)
    participant.save.resume(caller.resume())
    with pytest.raises(ClientDisconnect):
        await held


async def test_a_run_without_identity_plays_through_and_is_neither_saved_nor_counted(
    tmp_path: Path,
) -> None:
    """A save in its middle waits for nothing of it, saves nothing of it and lets it go on.

    Break: keep unidentified sessions among those that are exported.
    """
    async with joined(tmp_path) as (servers, http):
        servers.generation.delay_s = 0.05
        undisturbed = (await call(servers, http, AGENT)).json()
        assert (undisturbed["reward"], undisturbed["final_count"]) == (1.0, 18)
        run = call(servers, http, AGENT)
        asked = len(servers.generation.asked)
        await until(lambda: len(servers.generation.asked) >= asked + 2)
        answers = await servers.prepare_all()
        assert all(answer.ready for answer in answers)
        assert not run.done()
        for name in NAMES:
            counts = (await servers.status(name)).counts
            assert not any(counts.model_dump().values()), name
        committed = await servers.commit_all()
        assert committed[AGENT].continuations == []
        assert committed[COUNTER].sessions == []
        assert committed[MODEL].storage == []
        assert all(file.records in (0, None) for one in committed.values() for file in one.files)
        await servers.resume_all()
        assert (await run).json()["final_count"] == 18


async def test_sessions_with_and_without_identity_are_not_mixed(tmp_path: Path) -> None:
    async with joined(tmp_path) as (servers, http):
        url = servers.urls[COUNTER]
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
        seeded = await http.post(
            f"{url}/seed_session", json=ROW, headers=identity.mutation("seed").headers()
        )
        cookie = {"cookie": f"Counter___counter={seeded.cookies['Counter___counter']}"}
        http.cookies.clear()
        stranger = await http.post(f"{url}/get_counter_value", json={}, headers=cookie)
        assert (stranger.status_code, stranger.json()["code"]) == (409, "identity_mismatch")
        own = await http.post(f"{url}/seed_session", json=ROW)
        headers = {"cookie": f"Counter___counter={own.cookies['Counter___counter']}"}
        http.cookies.clear()
        counted = await http.post(f"{url}/increment_counter", json={"count": 4}, headers=headers)
        assert counted.json() == {"success": True}
        asked = await http.post(f"{url}/get_counter_value", json={}, headers=headers)
        assert asked.json() == {"count": 7}
        http.cookies.clear()
        mixed = await http.post(
            f"{url}/get_counter_value",
            json={},
            headers=headers | identity.mutation("call-0").headers(),
        )
        assert (mixed.status_code, mixed.json()["code"]) == (409, "identity_mismatch")
        http.cookies.clear()
        lost = await http.post(f"{url}/get_counter_value", json={})
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")
