"""The control routes over HTTP: the token, refusals, and what is never told."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from fastapi.routing import APIRoute
from pydantic import SecretStr

from gym.checkpoint.phases import Phases
from gym.protocol import Kind
from gym.protocol.control import BASE_PATH
from gym.server.app import create_app
from gym.server.settings import ServerSettings, settings_from_command_line
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


@pytest_asyncio.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    part = FakePart()
    part.kind = Kind.AGENT  # which has every control route
    app = create_app(Phases("fake"), part, settings(tmp_path), guarded=("/private",))

    @app.get("/private/thing")
    async def private() -> dict[str, str]:
        return {"a": "b"}

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret words of a conversation")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


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


async def test_health_is_open_to_all_and_guarded_prefixes_are_not(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert (await http.get("/private/thing")).status_code == 401
    assert (await http.get("/private/thing", headers=AUTHORIZED)).json() == {"a": "b"}


async def test_the_token_is_compared_in_constant_time(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
    await http.get(f"{BASE_PATH}/capabilities", headers={b"authorization": b"Bearer t\xf6ken"})
    assert compared == [1]


async def test_a_bad_field_is_named_and_its_value_hidden(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        f"{BASE_PATH}/prepare",
        json={
            "incarnation": 1,
            "instance_id": "x",
            "checkpoint_id": "../secret",
            "budget_s": "s3cret",
            "lease_s": 5,
            "unknown_field": "s3cret",
        },
        headers=AUTHORIZED,
    )
    assert answer.status_code == 422
    assert answer.json()["details"]["fields"] == ["budget_s", "checkpoint_id", "unknown_field"]
    assert "s3cret" not in answer.text
    assert "secret" not in answer.text


async def test_an_unexpected_error_tells_nothing(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await http.get("/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret words" not in answer.text
    assert "secret words" not in caplog.text
    assert any(r.__dict__.get("error") == "RuntimeError" for r in caplog.records)


def test_without_a_token_the_routes_are_not_installed(tmp_path: Path) -> None:
    for token in (None, SecretStr("")):
        bare = ServerSettings(name="fake", port=21_999, snapshot_root=tmp_path, control_token=token)
        with pytest.raises(ValueError, match="control_token_file"):
            create_app(Phases("fake"), FakePart(), bare)


def test_flags_win_over_the_environment_and_errors_hide_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNPOINT_SERVER_PORT", "21998")
    monkeypatch.setenv("TURNPOINT_SERVER_SNAPSHOT_ROOT", str(tmp_path))
    read = settings_from_command_line(ServerSettings, ["--name", "x", "--expect_restore", "true"])
    assert (read.port, read.expect_restore, read.snapshot_root) == (21_998, True, tmp_path)
    read = settings_from_command_line(ServerSettings, ["--name=x", "--port", "21997"])
    assert read.port == 21_997
    for flag in ("port", "worker-processes"):
        with pytest.raises(SystemExit) as ended:
            settings_from_command_line(ServerSettings, ["--name", "x", f"--{flag}", "99999999"])
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert said.startswith(f"--{flag}: ") and "99999999" not in said


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
