"""The phases of a restore, as seen from the Gym servers (design section 5).

Guarantees: the order of kinds is the design's, and a kind is called only after every server of
the kind before has answered; within a kind all are called at once. What was restored stays closed
until `resume_restored`. There is no lease and no deadline: a server that does not answer fails the
phase after `ANSWER_S`; one that works on it is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gym.client import GymClient
from gym.protocol import (
    DiscardRequest,
    InvalidPhase,
    Kind,
    NotJoined,
    Phase,
    ResetRequest,
    RestoreAnswer,
    RestoreRequest,
    ResumeAnswer,
    ResumeRequest,
    ServerUnreachable,
    StaleInstance,
    TurnpointError,
    WrittenFile,
)
from gym.retry import retry_until
from rl.errors import ServersMissing
from rl.messages import JoinedServer, ServerReport
from rl.nemo_gym.fleet import Answered, Fleet, each, own_files, report
from rl.nemo_gym.save import RESUME, UNREACHABLE_S

T = TypeVar("T")

RESTORE = (Kind.MODEL, Kind.AGENT, Kind.RESOURCE)
DROP = (Kind.AGENT, Kind.MODEL, Kind.RESOURCE)
"""Callers before callees."""

ANSWER_S = 10.0
"""Seconds for which calls are repeated while a server does not answer."""


async def restore(
    fleet: Fleet,
    restore_id: str,
    source_checkpoint_id: str,
    folder: Path,
    files: Sequence[WrittenFile],
) -> list[Answered[RestoreAnswer]]:
    """Have every server load its part: models, then agents, then resources; all stay closed.

    Raises:
        ServersMissing: A server does not answer.
        TurnpointError: A server's refusal (`digest_mismatch` names the file). What other servers
            have restored stays, closed, until `reset_servers`.
    """

    async def call(server: JoinedServer) -> RestoreAnswer:
        request = RestoreRequest(
            **fleet.ids(server),
            restore_id=restore_id,
            source_checkpoint_id=source_checkpoint_id,
            folder=str(folder),
            files=[file for file in files if file.path.startswith(own_files(server))],
        )
        return await fleet.client.restore(server.url, server.name, request)

    done: list[Answered[RestoreAnswer]] = []
    for kind in RESTORE:
        done += await _each(fleet.of(kind), call)
    return done


async def discard(fleet: Fleet, restore_id: str, rollout_ids: Sequence[str]) -> None:
    """Drop what was restored of these rollouts, on every server; their runs stay admissible."""

    async def call(server: JoinedServer) -> None:
        request = DiscardRequest(
            **fleet.ids(server), restore_id=restore_id, rollout_ids=list(rollout_ids)
        )
        await fleet.client.discard(server.url, server.name, request)

    for kind in DROP:
        await _each(fleet.of(kind), call)


async def resume_restored(fleet: Fleet, restore_id: str) -> list[ServerReport]:
    """Open what was restored: resources, models, agents.

    Raises:
        InvalidPhase: A server answered and is not open: what it had restored was dropped.
        ServersMissing: A server does not answer: the job has ended.
        TurnpointError: A server's refusal: the same.
    """

    async def call(server: JoinedServer) -> ResumeAnswer:
        request = ResumeRequest(**fleet.ids(server), checkpoint_id=restore_id)
        answer = await fleet.client.resume(server.url, server.name, request)
        if answer.phase is not Phase.OPEN:
            raise InvalidPhase(
                f"it is {answer.phase.value} after its resume",
                participant=server.name,
                details={"phase": answer.phase.value, "checkpoint_id": answer.checkpoint_id},
            )
        return answer

    reports: list[ServerReport] = []
    for kind in RESUME:
        answers = await _each(fleet.of(kind), call)
        reports += [report(item) for item in answers]
    return reports


async def _each(
    servers: Sequence[JoinedServer], call: Callable[[JoinedServer], Awaitable[T]]
) -> list[Answered[T]]:
    """Call every server at once.

    Raises:
        ServersMissing: One could not be reached for `ANSWER_S`. Not `ServerUnreachable`, which
            Temporal would try again for half an hour: a process that is gone does not come back
            as the one that joined.
    """
    try:
        return await each(servers, call, retry_deadline=time.monotonic() + ANSWER_S)
    except ServerUnreachable as gone:
        raise ServersMissing(
            f"{gone.participant} does not answer any more; look at its log, start it awaiting a "
            "restore, and restore again",
            participant=gone.participant,
            details={"servers": [gone.participant]},
        ) from None


async def reset_servers(
    client: GymClient, servers: Sequence[JoinedServer], incarnation: int, restore_id: str
) -> list[ServerReport]:
    """Drop everything that this try restored, on every server; back to awaiting.

    A server that does not answer, or is another instance, holds nothing of the try and is named
    in its report's `note`.

    Raises:
        TurnpointError: The first refusal of another sort, after every server was asked.
    """
    fleet = Fleet(client, servers, incarnation)

    async def call(server: JoinedServer) -> str | TurnpointError | None:
        request = ResetRequest(**fleet.ids(server), restore_id=restore_id)
        try:
            await retry_until(
                time.monotonic() + UNREACHABLE_S,
                lambda: client.reset(server.url, server.name, request),
            )
        except ServerUnreachable:
            return "unreachable"
        except (StaleInstance, NotJoined):
            return "another instance"
        except TurnpointError as error:
            return error
        return None

    reports: list[ServerReport] = []
    failures: list[TurnpointError] = []
    for kind in DROP:
        for item in await each(fleet.of(kind), call):
            if isinstance(item.answer, TurnpointError):
                failures.append(item.answer)
            else:
                reports.append(report(item, note=item.answer))
    if failures:
        raise failures[0]
    return reports
