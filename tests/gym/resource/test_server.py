"""Routes of a resource server: cookies, headers, bodies."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.environments.counter import Counter
from gym.protocol import Identity
from gym.resource import ServerSettings, serve_environment
from tests.gym.resource_server import (
    COOKIE,
    Scripted,
    served,
)


async def test_the_cookie_has_no_age_limit_and_is_sent_with_every_answer(tmp_path: Path) -> None:
    async with served(Counter(), tmp_path) as server:
        first = await server.seed()
        assert "max-age" not in first.headers["set-cookie"].lower()
        assert "expires" not in first.headers["set-cookie"].lower()
        cookies = {COOKIE: first.cookies[COOKIE]}
        second = await server.call("/get_counter_value", {}, "call-0", cookies=cookies)
        assert (second.status_code, second.json()) == (200, {"count": 3})
        assert COOKIE in second.cookies
        other = await server.seed(rollout="p0_g1")
        wrong = {COOKIE: other.cookies[COOKIE]}
        lost = await server.call("/get_counter_value", {}, "call-1", cookies=wrong)
        assert (lost.status_code, lost.json()["code"]) == (410, "session_lost")


async def test_arguments_nested_too_deeply_are_refused_like_others(tmp_path: Path) -> None:
    """The agent could read them; the server, further down its stack, perhaps cannot.

    Break: gym/resource/server.py: catch no `RecursionError` in `_parsed`.
    """
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        headers = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).mutation("call-0")
        body = '{"name": ' + "[" * 2_000 + "]" * 2_000 + "}"
        deep = await server.http.post("/append", content=body, headers=headers.headers())
        assert (deep.status_code, deep.json()["code"]) == (422, "invalid_request")
        assert (await server.call("/append", {"name": "a"}, "call-0")).json() == {"all": ["a"]}


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("/append", {"x-turnpoint-request-id": "p0_g0/call-1/0"}),
        ("/append", {"x-turnpoint-request-id": "p0_g0/call-0/01"}),
        ("/append", {"x-turnpoint-request-id": "p0_g0-a1/call-0/0"}),
        ("/append", {"x-turnpoint-request-id": None}),
        ("/append", {"x-turnpoint-model-call-id": None}),
        ("/append", {"x-turnpoint-attempt": None}),
        ("/seed_session", {}),
        ("/verify", {"x-turnpoint-request-id": "p0_g0/seed/0", "x-turnpoint-model-call-id": None}),
    ],
)
async def test_headers_that_do_not_fit_the_route_are_refused(
    path: str, changed: dict[str, str | None], tmp_path: Path
) -> None:
    async with served(Scripted(), tmp_path) as server:
        await server.seed()
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0).mutation("call-0")
        headers = {k: v for k, v in (identity.headers() | changed).items() if v is not None}
        answer = await server.http.post(path, json={}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "identity_mismatch")


class MySettings(ServerSettings):
    my_word: str = "none"


class Mine(Scripted):
    """An environment with a setting of its own."""

    def __init__(self, settings: MySettings) -> None:
        super().__init__()
        self.word = settings.my_word


@pytest.mark.parametrize(
    ("flags", "variable", "word"),
    [
        ([], None, "none"),
        ([], "by variable", "by variable"),
        (["--my-word", "by flag"], "by variable", "by flag"),
        (["--my_word=by flag"], None, "by flag"),
    ],
)
def test_an_authors_own_setting_is_a_flag_and_a_variable(
    flags: list[str],
    variable: str | None,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Break: gym/resource/server.py: read `ServerSettings`, whatever class is given."""
    made: list[Mine] = []
    ran: list[ServerSettings] = []

    def environment(settings: MySettings) -> Mine:
        made.append(Mine(settings))
        return made[0]

    monkeypatch.setattr("gym.server.serve.serve", lambda app, settings: ran.append(settings))
    given = ["--name", "mine", "--port", "21999", "--snapshot-root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["mine", *given, "--control-token", "t", *flags])
    if variable is not None:
        monkeypatch.setenv("TURNPOINT_SERVER_MY_WORD", variable)
    serve_environment(environment, MySettings)
    assert (made[0].word, ran[0].name, ran[0].port) == (word, "mine", 21_999)


def test_an_environment_without_settings_is_made_without_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr("gym.server.serve.serve", lambda app, settings: ran.append(app.title))
    given = ["--name", "plain", "--port", "21999", "--snapshot-root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["plain", *given, "--control-token", "t"])
    serve_environment(Scripted)
    assert ran == ["plain"]
