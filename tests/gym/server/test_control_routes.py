"""The control routes over HTTP: the token, the route table, and the log."""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from gym.checkpoint.phases import Phases
from gym.protocol import Kind
from gym.protocol.control import BASE_PATH
from gym.server.app import create_app
from tests.gym.parts import FakePart, settings

AUTHORIZED = {"authorization": "Bearer token"}
ROUTES = [
    ("GET", "capabilities"),
    ("GET", "status"),
    *(
        ("POST", name)
        for name in (
            "join", "prepare", "renew", "commit", "resume", "restore", "reset", "discard",
            "forget", "acknowledge",
        )
    ),
]  # fmt: skip


def test_no_control_route_is_left_out_here(tmp_path: Path) -> None:
    """Break: add a route to the server and not to the list above."""
    part = FakePart()
    part.kind = Kind.AGENT
    app = create_app(Phases("fake"), part, settings(tmp_path))
    installed = {
        (method, route.path.removeprefix(f"{BASE_PATH}/"))
        for route in app.routes
        if isinstance(route, APIRoute) and route.path.startswith(BASE_PATH)
        for method in route.methods
    }
    assert installed == set(ROUTES)


@pytest.mark.parametrize(("method", "name"), ROUTES)
async def test_every_control_route_asks_for_the_token_before_it_reads_the_body(
    method: str, name: str, http: httpx.AsyncClient
) -> None:
    for given in ({}, {"authorization": "Bearer other"}, {"authorization": "token"},
                  {"authorization": "bearer token "}):  # fmt: skip
        answer = await http.request(
            method, f"{BASE_PATH}/{name}", content=b"not json", headers=given
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    if method == "POST":
        answer = await http.request(method, f"{BASE_PATH}/{name}", json={}, headers=AUTHORIZED)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_the_token_is_compared_in_constant_time(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
    await http.get(f"{BASE_PATH}/capabilities", headers={b"authorization": b"Bearer t\xf6ken"})
    assert compared == [1]


async def test_the_log_has_a_line_at_begin_and_end_of_each_operation(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="turnpoint.gym")
    body = {"job_id": "job", "incarnation": 1}
    await http.post(f"{BASE_PATH}/join", json=body, headers=AUTHORIZED)
    await http.post(f"{BASE_PATH}/join", json={**body, "incarnation": 2}, headers=AUTHORIZED)
    logged = [r.__dict__ for r in caplog.records if r.__dict__.get("event") == "control"]
    assert [(r["operation"], r["state"], r["outcome"]) for r in logged] == [
        ("join", "begin", None),
        ("join", "end", "ok"),
        ("join", "begin", None),
        ("join", "end", "stale_incarnation"),
    ]
    await asyncio.sleep(0)
