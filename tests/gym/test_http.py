"""The HTTP client of the job's processes, and the errors of calls without a server's answer."""

from __future__ import annotations

import httpx
import pytest

from gym.http import gateway_error, http_client, json_or_none, send
from gym.protocol import ServerUnreachable


async def test_an_answer_with_an_error_status_comes_back() -> None:
    async with http_client(httpx.MockTransport(lambda _: httpx.Response(418))) as http:
        answer = await send(http, "POST", "http://server/run", participant="agent", json={})
    assert answer.status_code == 418


async def test_no_answer_is_a_server_that_is_named_with_the_path() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with http_client(httpx.MockTransport(refuse)) as http:
        with pytest.raises(ServerUnreachable, match=r"no answer \(ConnectError\)") as silent:
            await send(http, "GET", "http://server/a/b?token=x", participant="counter")
    assert silent.value.participant == "counter" and silent.value.details == {"path": "/a/b"}


async def test_no_cookie_of_one_call_is_sent_with_the_next() -> None:
    """Break: gym/http.py: leave httpx its own cookie jar."""
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("cookie"))
        return httpx.Response(200, headers={"set-cookie": "session=1; Path=/"})

    async with http_client(httpx.MockTransport(answer)) as http:
        for _ in range(2):
            await http.get("http://server/")
        await http.get("http://server/", headers={"cookie": "own=1"})
    assert seen == [None, None, "own=1"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateways_answer_counts_as_none(status: int) -> None:
    for body in (None, "bad gateway", {"detail": "bad gateway"}):
        error = gateway_error(status, body, server_field="code", participant="agent")
        assert isinstance(error, ServerUnreachable) and error.participant == "agent"


def test_the_servers_own_answer_is_no_gateways() -> None:
    assert gateway_error(503, {"code": "x"}, server_field="code", participant="agent") is None
    assert gateway_error(500, None, server_field="code", participant="agent") is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": [1]}', {"a": [1]}),
        (b"bad gateway", None),
        (b"", None),
        (b'{"a": NaN}', None),
        (b"[" * 100_000, None),
        (b"\xff\xfe\xfa", None),
    ],
)
def test_json_or_none(content: bytes, expected: object) -> None:
    assert json_or_none(httpx.Response(200, content=content)) == expected
