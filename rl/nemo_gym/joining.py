"""Finding the Gym servers of a job and joining them (design sections 5 and 6).

Guarantees: what is returned has answered, fits the configuration and belongs to this incarnation;
no server is joined before all are there and fit. The instance of each is the one that answered
`join`: from then on another life of the process is told apart.
"""

from __future__ import annotations

import asyncio
import time

from gym.client import GymClient
from gym.protocol import (
    SCHEMA_VERSION,
    Capabilities,
    JoinRequest,
    Kind,
    Mode,
    Phase,
    Role,
    ServerFault,
    ServerUnreachable,
)
from gym.retry import retry_until
from rl.config import JobConfig, ServerConfig
from rl.errors import ServersMissing, ServersNotAwaiting, ServerUnfit
from rl.messages import JoinedServer

_JOIN_ORDER = (Kind.RESOURCE, Kind.MODEL, Kind.AGENT)
"""A join opens a server that starts: what agents call is open first."""
_HTTP_NOT_FOUND = 404
_RESTORABLE = (Phase.AWAITING_RESTORE, Phase.RESTORING, Phase.RESTORED)
"""Phases that a `join` under a higher incarnation takes to awaiting."""
_LOOK_EVERY_S = 0.1


async def discover_and_join(
    client: GymClient,
    config: JobConfig,
    incarnation: int,
    timeout_s: float,
    *,
    awaiting: bool = False,
) -> list[JoinedServer]:
    """Wait until every server of the job is there, check what they are, and join each.

    Repeatable: a join is idempotent per incarnation. A resource server without the control
    routes (an unmodified one) takes part as `restart_only`, with no instance.

    Args:
        client: For the control routes.
        config: Names the servers.
        incarnation: The one to join.
        timeout_s: Seconds to wait for servers that do not answer yet.
        awaiting: For a restore: wait as long for servers that were not started for one (those
            of a job that was replaced are being restarted).

    Returns:
        The servers in the configuration's order.

    Raises:
        ServersMissing: Some did not answer within `timeout_s`; all of them are named.
        ServersNotAwaiting: Some answer and do not await a restore; who restarts what is named.
        ServerUnfit: Some are not what the job needs; each is named with the reason.
        StaleIncarnation: A server belongs to another incarnation.
        Unauthorized: The token is another one.
    """
    deadline = time.monotonic() + timeout_s
    found = await asyncio.gather(
        *(_capabilities(client, server, deadline, awaiting) for server in config.servers),
        return_exceptions=True,
    )
    missing = [
        server.name
        for server, answer in zip(config.servers, found, strict=True)
        if isinstance(answer, ServerUnreachable)
    ]
    if missing:
        raise ServersMissing(
            f"not there after {timeout_s:g} s: {', '.join(missing)}; see `turnpoint status`",
            participant=missing[0],
            details={"servers": missing},
        )
    there: dict[str, Capabilities | None] = {}
    for server, answer in zip(config.servers, found, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        there[server.name] = answer
    if awaiting:
        _require_awaiting(there, timeout_s)
    _require_fit(config, there)

    joined: dict[str, JoinedServer] = {}
    for kind in _JOIN_ORDER:
        answers = await asyncio.gather(
            *(
                _joined(client, config, server, there[server.name], incarnation, deadline)
                for server in config.servers
                if server.kind is kind
            )
        )
        joined |= {server.name: server for server in answers}
    return [joined[server.name] for server in config.servers]


async def _capabilities(
    client: GymClient, server: ServerConfig, deadline: float, awaiting: bool
) -> Capabilities | None:
    """Capabilities of the server; None for one without the control routes.

    With `awaiting` the answer of one that awaits a restore, or the last one before the deadline.
    """
    found: Capabilities | None = None
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                found = await retry_until(
                    deadline, lambda: client.capabilities(server.url, server.name)
                )
                if not awaiting or found.phase in _RESTORABLE:
                    return found
                await asyncio.sleep(_LOOK_EVERY_S)
    except (TimeoutError, ServerUnreachable):
        if found is not None:
            return found
        raise ServerUnreachable("no answer", participant=server.name) from None
    except ServerFault as fault:
        if fault.details.get("http") == _HTTP_NOT_FOUND:
            return None
        raise


def _require_awaiting(there: dict[str, Capabilities | None], timeout_s: float) -> None:
    left = {
        name: f"{found.phase} under incarnation {found.incarnation}"
        for name, found in there.items()
        if found is not None and found.phase not in _RESTORABLE
    }
    if left:
        named = ", ".join(f"{name} ({state})" for name, state in left.items())
        raise ServersNotAwaiting(
            f"not awaiting a restore after {timeout_s:g} s: {named}; restart them with "
            "`--expect-restore true` and restore again (`turnpoint restore` restarts those of a "
            "local stack)",
            participant=next(iter(left)),
            details={"servers": left},
        )


def _require_fit(config: JobConfig, there: dict[str, Capabilities | None]) -> None:
    unfit = {
        server.name: reason
        for server in config.servers
        if (reason := _why_unfit(server, there[server.name])) is not None
    }
    policies = [
        name
        for name, found in there.items()
        if found is not None and found.kind is Kind.MODEL and found.role is not Role.AUXILIARY
    ]
    if not unfit and len(policies) != 1:
        unfit = {"servers": f"{len(policies)} policy model servers, and a job has one"}
    if unfit:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unfit.items())
        raise ServerUnfit(
            f"not what the job needs: {reasons}",
            participant=next(iter(unfit)),
            details={"servers": unfit},
        )


def _why_unfit(server: ServerConfig, found: Capabilities | None) -> str | None:
    if found is None:
        is_resource = server.kind is Kind.RESOURCE
        return None if is_resource else f"a {server.kind.value} server without control routes"
    if found.kind is not server.kind:
        return f"it is a {found.kind.value} server, configured as {server.kind.value}"
    if SCHEMA_VERSION not in found.schema_versions:
        return f"it speaks schema {found.schema_versions}, not {SCHEMA_VERSION}"
    if found.worker_processes != 1:
        return f"{found.worker_processes} worker processes: state lives in one"
    return None


async def _joined(
    client: GymClient,
    config: JobConfig,
    server: ServerConfig,
    found: Capabilities | None,
    incarnation: int,
    deadline: float,
) -> JoinedServer:
    if found is None:
        return JoinedServer(
            name=server.name,
            kind=server.kind,
            mode=Mode.RESTART_ONLY,
            url=server.url,
            instance_id=None,
        )
    request = JoinRequest(job_id=config.job_id, incarnation=incarnation)
    answer = await retry_until(deadline, lambda: client.join(server.url, server.name, request))
    return JoinedServer(
        name=server.name,
        kind=found.kind,
        mode=found.mode,
        role=found.role,
        url=server.url,
        instance_id=answer.instance_id,
        schema_versions=found.schema_versions,
        phase=answer.phase,
    )
