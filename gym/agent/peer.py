"""How an agent calls model and resource servers: one POST, and what its answer means.

Guarantees: a lost connection is `ServerUnreachable`, never an answer; a typed refusal of this
protocol is told from an environment's own 4xx by its exact shape, so that neither is taken for
the other; cookies travel by hand, so rollouts never share a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from http.cookies import CookieError, SimpleCookie
from typing import Any

import httpx

from gym.protocol import (
    HEADER_RESOURCE_REVISION,
    Identity,
    InvalidRequest,
    NotJoined,
    ProtocolError,
    ServerFault,
    ServerUnreachable,
    StaleInstance,
    TurnpointError,
    error_from_body,
    parse_json,
)

_BODY_FIELDS = {"code", "message", "details"}
_GATEWAY = (502, 503, 504)


class Reply:
    """One answer of a server."""

    def __init__(self, server: str, answer: httpx.Response) -> None:
        """Keep what the loop needs of an HTTP answer."""
        self.server = server
        self.status = answer.status_code
        self.headers: Mapping[str, str] = answer.headers
        self.text = answer.text
        self.cookies = _cookies(answer)

    @property
    def error(self) -> TurnpointError | None:
        """The typed refusal that this answer is, if it is one.

        An untyped 502, 503 or 504 comes from something in between: `ServerUnreachable`; but not
        one with a `detail`, as a refusal of a server of this kind has it. Any other answer is the
        environment's own, and None here.
        """
        if self.status < 400:
            return None
        body = self._body()
        if isinstance(body, dict) and set(body) == _BODY_FIELDS:
            error = error_from_body(self.status, body, participant=self.server)
            known = isinstance(error, ProtocolError) and error.status == self.status
            if known or self.status >= 500:
                return error
        if self.status in _GATEWAY and not (isinstance(body, dict) and "detail" in body):
            return ServerUnreachable(f"HTTP {self.status}", participant=self.server)
        return None

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the server wants the same call again."""
        given = self.headers.get("retry-after", "")
        return float(given) if given.isdecimal() else None

    @property
    def revision(self) -> int | None:
        """Revision of the session after the call, where the server keeps one."""
        given = self.headers.get(HEADER_RESOURCE_REVISION, "")
        return int(given) if given.isdecimal() else None

    def object(self) -> dict[str, Any]:
        """The JSON object that a successful answer holds.

        Raises:
            ServerFault: It is no success, or holds something else.
        """
        body = self._body() if 200 <= self.status < 300 else None
        if not isinstance(body, dict):
            raise ServerFault(
                f"HTTP {self.status} without the expected JSON object", participant=self.server
            )
        return body

    def _body(self) -> Any:
        try:
            return parse_json(self.text)
        except (ValueError, RecursionError):
            return None


class Peer:
    """One server that an agent calls.

    Args:
        name: Its name in the job.
        url: Its base URL.
        http: The process's HTTP client (see `http_client`).
    """

    def __init__(self, name: str, url: str, http: httpx.AsyncClient) -> None:
        """Open no connection yet."""
        self.name = name
        self._url = url.rstrip("/")
        self._http = http

    async def post(
        self, path: str, body: Any, identity: Identity | None, cookies: Mapping[str, str]
    ) -> Reply:
        """POST `body` once; without an identity if the caller has none.

        Raises:
            ServerUnreachable: No answer came: whether the call took effect is unknown.
        """
        headers = identity.headers() if identity is not None else {}
        if cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        try:
            answer = await self._http.post(f"{self._url}/{path}", json=body, headers=headers)
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"no answer ({type(error).__name__})", participant=self.name
            ) from None
        return Reply(self.name, answer)

    def without_identity(self) -> Peer:
        """The same server, called by nobody that it could know again."""
        return _Unidentified(self.name, self._url, self._http)


class _Unidentified(Peer):
    """Calls without identity headers: no receipt makes a repeat harmless, so there is none."""

    async def post(
        self, path: str, body: Any, identity: Identity | None, cookies: Mapping[str, str]
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


def http_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """The client of an agent process: no cookies of its own, no limit, no read timeout.

    A model call or a step takes as long as it takes; parked time counts against nothing.
    """
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(
        transport=transport,
        cookies=no_cookies,
        timeout=httpx.Timeout(None, connect=2),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        trust_env=False,
    )


def is_environment_error(error: TurnpointError | None) -> bool:
    """Whether an answer is one that NeMo Gym shows to the model as the tool's output.

    Everything untyped is, and arguments that the tool's own schema refuses.
    """
    return error is None or isinstance(error, InvalidRequest)


def refuse_another_life(error: TurnpointError | None, server: str) -> None:
    """Raise if a server answers as a process that has not joined the job of the run.

    The life that had joined is over, and the sessions or the ledger of every rollout with it. To
    issue the call again would wait for ever: nobody joins a server to a job that runs. So the run
    fails with this code, by which RL knows that the job is lost (design section 4).

    No run of a job that can go on meets this answer:

    - A save closes servers that have joined: they answer `checkpoint_parked`.
    - A fresh job sends its first run when all servers have joined.
    - A restored run stands parked until its agent is resumed, the last of all: by then every
      server has joined the new incarnation, was restored under it, and was resumed as the
      instance that joined. Until its own resume it answers `checkpoint_parked`.
    - A server that was restarted for a later restore may answer so to a run of the job which that
      restore replaces: RL's actors of it were ended before, and its agent is restarted too.
    - No snapshot has a run that failed like this: a save's calls name the instances that joined,
      from `prepare` until all are confirmed at the cut. (Of a run that has failed otherwise a
      restore continues nothing: it starts over.)

    Raises:
        NotJoined, StaleInstance: It does; the server is named, and the next step.
    """
    if isinstance(error, NotJoined | StaleInstance):
        raise type(error)(
            f"{server} has not joined this job: it was restarted, and what it held of the rollouts "
            "is lost (or it is none of the job's `servers`); restore the job",
            participant=server,
            details={"server": server},
        )


def _cookies(answer: httpx.Response) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in answer.headers.get_list("set-cookie"):
        try:
            parsed = SimpleCookie(header)
        except CookieError:
            continue  # a cookie that nobody can send back
        found |= {name: morsel.coded_value for name, morsel in parsed.items()}
    return found
