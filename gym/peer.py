"""Calls of one Gym server to another: a POST, and the meaning of its answer.

Guarantees: a lost connection is `ServerUnreachable`, never an answer; a typed refusal of this
protocol is told from an environment's own 4xx by its exact shape; the caller keeps the cookies, so
rollouts never share a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from typing import Any

import httpx

from gym.http import gateway_error, json_or_none, send
from gym.protocol import (
    HEADER_RESOURCE_REVISION,
    Identity,
    ProtocolError,
    ServerFault,
    ServerUnreachable,
    TurnpointError,
    error_from_body,
)
from gym.retry import TryAgain, retry

PASSING = (ServerUnreachable, TryAgain)
"""Failures after which the same call is issued again."""
_BODY_FIELDS = {"code", "message", "details"}
_NO_COOKIES: Mapping[str, str] = {}


class Reply:
    """One answer of a server."""

    def __init__(self, server: str, answer: httpx.Response) -> None:
        self.server = server
        self.status = answer.status_code
        self.headers: Mapping[str, str] = answer.headers
        self.text = answer.text
        self.cookies = _cookies(answer)
        self._answer = answer

    @cached_property
    def _body(self) -> Any:
        return json_or_none(self._answer)

    @cached_property
    def error(self) -> TurnpointError | None:
        """The typed refusal that this answer is, or None: then it is the environment's own.

        A gateway's answer is `ServerUnreachable`.
        """
        if self.status < 400:
            return None
        if isinstance(self._body, dict) and set(self._body) == _BODY_FIELDS:
            error = error_from_body(self.status, self._body, participant=self.server)
            known = isinstance(error, ProtocolError) and error.status == self.status
            if known or self.status >= 500:
                return error
        # An environment's own refusal has a `detail`, as FastAPI writes it.
        return gateway_error(
            self.status, self._body, server_field="detail", participant=self.server
        )

    @property
    def revision(self) -> int | None:
        """Revision of the session after the call, if the server keeps one."""
        given = self.headers.get(HEADER_RESOURCE_REVISION, "")
        return int(given) if given.isdecimal() else None

    def object(self) -> dict[str, Any]:
        """The JSON object that a successful answer holds.

        Raises:
            ServerFault: The call failed, or the answer holds something else.
        """
        if not 200 <= self.status < 300 or not isinstance(self._body, dict):
            raise ServerFault(
                f"HTTP {self.status} without the expected JSON object", participant=self.server
            )
        return self._body

    def require_final(self) -> None:
        """Raise `TryAgain` if the answer is a refusal that passes."""
        if (error := self.error) is not None and error.retryable:
            after = self.headers.get("retry-after", "")
            raise TryAgain(error.code, after_s=float(after) if after.isdecimal() else None)


class Peer:
    """Another server of the job.

    Args:
        name: Its name in the job.
        url: Its base URL.
        http: The process's HTTP client (`gym.http.http_client`).
    """

    def __init__(self, name: str, url: str, http: httpx.AsyncClient) -> None:
        self.name = name
        self._url = url.rstrip("/")
        self._http = http

    async def post(
        self,
        path: str,
        body: Any,
        identity: Identity | None = None,
        cookies: Mapping[str, str] = _NO_COOKIES,
    ) -> Reply:
        """POST `body` once, with the headers of `identity` if there is one.

        Raises:
            ServerUnreachable: No answer came: whether the call took effect is unknown.
        """
        headers = identity.headers() if identity is not None else {}
        if cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        url = f"{self._url}/{path}"
        answer = await send(
            self._http, "POST", url, participant=self.name, json=body, headers=headers
        )
        return Reply(self.name, answer)

    async def call(self, path: str, body: Any, identity: Identity | None = None) -> Reply:
        """POST the same body until an answer comes that does not pass.

        The server may be restarted meanwhile. The answer may be an error.
        """

        async def once() -> Reply:
            reply = await self.post(path, body, identity)
            reply.require_final()
            return reply

        return await retry(once, on=PASSING)

    def without_identity(self) -> Peer:
        """The same server, called without identity headers and never twice."""
        return _AnonymousPeer(self.name, self._url, self._http)


class _AnonymousPeer(Peer):
    """Without identity no receipt makes a repeat harmless, so a failure that passes is final."""

    async def post(
        self,
        path: str,
        body: Any,
        identity: Identity | None = None,
        cookies: Mapping[str, str] = _NO_COOKIES,
    ) -> Reply:
        try:
            reply = await super().post(path, body, None, cookies)
            error = reply.error
        except ServerUnreachable as unreachable:
            error = unreachable
        if error is not None and error.retryable:
            raise ServerFault(
                f"{error.message}; a call without identity is not issued again",
                participant=self.name,
            )
        return reply


def _cookies(answer: httpx.Response) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in answer.headers.get_list("set-cookie"):
        try:
            parsed = SimpleCookie(header)
        except CookieError:
            continue  # no caller could send such a cookie back
        found |= {name: morsel.coded_value for name, morsel in parsed.items()}
    return found
