"""HTTP clients of this job's processes, and the typed errors of calls that no server answered."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from gym.protocol import ServerUnreachable, parse_json

CONNECT_S = 2.0
"""Seconds for a connection to be accepted."""
_GATEWAY = (502, 503, 504)


def http_client(
    transport: httpx.AsyncBaseTransport | None = None, *, connect_s: float = CONNECT_S
) -> httpx.AsyncClient:
    """A client without read timeout: a run, a model call or a step takes as long as it takes.

    It has no connection limit, as thousands of runs are open at once and a limit would queue
    control calls behind them; it keeps no cookies, so rollouts never share a session; and it uses
    no proxy of the environment, which is not meant for servers of the job.

    Args:
        transport: Another transport than HTTP, for tests.
        connect_s: Seconds for a connection to be accepted.
    """
    return httpx.AsyncClient(
        transport=transport,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=httpx.Timeout(None, connect=connect_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        trust_env=False,
    )


async def send(
    http: httpx.AsyncClient, method: str, url: str, *, participant: str, **options: Any
) -> httpx.Response:
    """Send one request and answer its response, also one with an error status.

    Args:
        http: The client.
        method: `GET` or `POST`.
        url: Full URL.
        participant: Name of the server, for the error.
        options: Further arguments of `httpx.AsyncClient.request`.

    Raises:
        ServerUnreachable: No answer came; whether the call took effect is unknown.
    """
    try:
        return await http.request(method, url, **options)
    except httpx.TransportError as error:
        raise ServerUnreachable(
            f"no answer ({type(error).__name__})",
            participant=participant,
            details={"path": httpx.URL(url).path},
        ) from None


def gateway_error(
    status: int, body: object, *, server_field: str, participant: str
) -> ServerUnreachable | None:
    """The error for an answer of a gateway in the server's place; None if the server answered.

    Args:
        status: HTTP status of the answer.
        body: Its JSON, or None.
        server_field: Field that the server's own errors have: a 502, 503 or 504 without it comes
            from a gateway.
        participant: Name of the server.
    """
    if status not in _GATEWAY or (isinstance(body, dict) and server_field in body):
        return None
    return ServerUnreachable(
        f"no answer (HTTP {status} of a gateway in its place)", participant=participant
    )


def json_or_none(answer: httpx.Response) -> Any:
    """The JSON in an answer, or None."""
    try:
        return parse_json(answer.content)
    except ValueError:
        return None
