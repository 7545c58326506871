"""The phases of a save, as seen from the Gym servers (design section 4).

Guarantees: the order of kinds is the design's, and a kind is called only after every server of
the kind before has answered; within a kind all are called at once. A phase ends by its deadline.
`resume_servers` never fails because of one server: a dead one must not keep the others paused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gym.client import GymClient
from gym.protocol import (
    Blocker,
    CommitAnswer,
    CommitRequest,
    Counts,
    DeadlineExceeded,
    Kind,
    Phase,
    PrepareAnswer,
    PrepareRequest,
    RenewRequest,
    ResumeRequest,
    Role,
    ServerFault,
    ServerUnreachable,
    StaleInstance,
    Status,
    TurnpointError,
    WrittenFile,
)
from gym.retry import retry_until
from rl.errors import NotHeld
from rl.messages import JoinedServer, PrepareAnswers, ServerReport
from rl.nemo_gym.blockers import blockers_of, no_answer, not_ready, require_ready
from rl.nemo_gym.fleet import Answered, Fleet, each, own_files, report, server_timeout_s
from rl.nemo_gym.silent_servers import ServersSilent, unless_silent

PREPARE = (Kind.MODEL, Kind.AGENT, Kind.RESOURCE)
COMMIT = (Kind.AGENT, Kind.MODEL, Kind.RESOURCE)
RESUME = (Kind.RESOURCE, Kind.MODEL, Kind.AGENT)

CONTINUATIONS = "continuations.jsonl"
UNREACHABLE_S = 2.0
"""Design section 4: so long unreachable, a server counts as resumed."""
CONFIRM_S = 5.0
_POLL_S = 0.1


async def prepare(
    fleet: Fleet, checkpoint_id: str, timeout_s: float, lease_left_s: Callable[[], float]
) -> PrepareAnswers:
    """Bring every rollout to a turn boundary: model, then agents, then resources; then status.

    Args:
        fleet: The servers.
        checkpoint_id: The save.
        timeout_s: Seconds for all of it.
        lease_left_s: Seconds left of the save's lease; servers get this lease. Raises
            `StaleCheckpoint` at zero.

    Raises:
        NotReady: Servers of a kind were not ready in time, or a server of any kind did not answer
            for a lease; `details["blockers"]` lists every blocker: server, rollout, place and age.
        TurnpointError: A server's refusal.
    """
    deadline = time.monotonic() + timeout_s
    reports: list[ServerReport] = []
    parked = 0

    async def call(server: JoinedServer) -> PrepareAnswer | Blocker:
        started = time.monotonic()

        async def once() -> PrepareAnswer:
            request = PrepareRequest(
                **fleet.ids(server),
                checkpoint_id=checkpoint_id,
                budget_s=server_timeout_s(deadline),
                lease_s=lease_left_s(),
            )
            return await fleet.client.prepare(server.url, server.name, request)

        # An unreachable server is not called any more once its lease would have ended.
        retry_deadline = min(deadline, started + lease_left_s())
        try:
            async with asyncio.timeout_at(deadline):
                return await retry_until(retry_deadline, once)
        except (ServerUnreachable, TimeoutError):
            return no_answer(time.monotonic() - started)

    for kind in PREPARE:
        lease_s = lease_left_s()
        try:
            answers = await unless_silent(each(fleet.of(kind), call), fleet, lease_s)
        except ServersSilent as silent:
            listed = [blockers_of(name, no_answer(s)) for name, s in silent.servers.items()]
            raise not_ready([blocker for one in listed for blocker in one]) from None
        require_ready(answers)
        for item in answers:
            counts = item.answer.counts if isinstance(item.answer, PrepareAnswer) else Counts()
            reports.append(report(item, counts=counts))
            parked += counts.parked if kind is Kind.AGENT else 0
    await wait_idle(fleet, checkpoint_id, deadline, lease_left_s())
    return PrepareAnswers(servers=reports, parked=parked)


async def wait_idle(fleet: Fleet, checkpoint_id: str, deadline: float, lease_s: float) -> None:
    """Ask every server's status until none has a call in flight, and all hold this checkpoint.

    Raises:
        NotReady: Calls were in flight at the deadline, or a server did not answer for `lease_s`.
        NotHeld: A server does not hold this checkpoint.
    """
    started = time.monotonic()
    busy: list[dict[str, Any]] = []
    while True:
        try:
            found = await each(
                fleet.controlled,
                lambda server: fleet.status(server, server_timeout_s(deadline)),
                deadline,
                retry_deadline=time.monotonic() + lease_s,
            )
        except DeadlineExceeded:
            if busy:  # the time was too short for this try: the one before gives the reason
                raise not_ready(busy) from None
            raise
        except ServerUnreachable as gone:
            age_s = time.monotonic() - started
            raise not_ready(blockers_of(str(gone.participant), no_answer(age_s))) from None
        busy = []
        for item in found:
            status, name = item.answer, item.server.name
            if status.checkpoint_id != checkpoint_id:
                raise NotHeld(
                    f"it is {status.phase.value} and not held by this checkpoint",
                    participant=name,
                    details={"servers": {name: status.phase.value}},
                )
            if status.counts.in_flight and item.server.role is not Role.AUXILIARY:
                age_s = time.monotonic() - started
                unnamed = Blocker(rollout_id=None, where="in_flight", age_s=age_s)
                busy += blockers_of(name, *(status.blockers or [unnamed]))
        if not busy:
            return
        if deadline - time.monotonic() <= _POLL_S:
            raise not_ready(busy)
        await asyncio.sleep(_POLL_S)


async def commit(
    fleet: Fleet,
    checkpoint_id: str,
    timeout_s: float,
    folder: Path,
    lease_left_s: Callable[[], float],
) -> list[Answered[CommitAnswer]]:
    """Have every server write its part: agents, models with the agents' indexes, resources.

    Raises:
        StaleCheckpoint: The save's lease has ended.
        DeadlineExceeded: A server has not answered in time.
        NotHeld: A server could not be reached for a whole lease.
        ServerFault: A server names files outside its own folder.
        TurnpointError: A server's refusal.
    """
    deadline = time.monotonic() + timeout_s
    indexes: list[WrittenFile] = []

    async def call(server: JoinedServer) -> CommitAnswer:
        request = CommitRequest(
            **fleet.ids(server),
            checkpoint_id=checkpoint_id,
            budget_s=server_timeout_s(deadline),
            folder=str(folder),
            continuation_indexes=indexes if server.kind is Kind.MODEL else [],
        )
        answer = await fleet.client.commit(server.url, server.name, request)
        if any(not file.path.startswith(own_files(server)) for file in answer.files):
            raise ServerFault("it names files outside its own folder", participant=server.name)
        return answer

    done: list[Answered[CommitAnswer]] = []
    for kind in COMMIT:
        # After the lease's end no further server is called. A server that cannot be reached for a
        # whole lease has lost the checkpoint: to wait on would keep the others paused in vain, and
        # Temporal would repeat an error that may pass until the deadline.
        lease_s = lease_left_s()
        calls = each(fleet.of(kind), call, deadline, retry_deadline=time.monotonic() + lease_s)
        try:
            answers = await unless_silent(calls, fleet, lease_s)
        except ServersSilent as silent:
            raise _not_held(dict.fromkeys(silent.servers, ServerUnreachable.code)) from None
        except ServerUnreachable as gone:
            raise _not_held({str(gone.participant): gone.code}) from None
        done += answers
        if kind is Kind.AGENT:
            indexes += [
                file
                for item in answers
                for file in item.answer.files
                if Path(file.path).name == CONTINUATIONS
            ]
    return done


async def confirm_held(
    fleet: Fleet, checkpoint_id: str, timeout_s: float = CONFIRM_S
) -> list[ServerReport]:
    """Confirm that every server still has this checkpoint: same instance, committed, lease alive.

    Raises:
        NotHeld: `details["servers"]` names each server that has not, and the reason.
    """
    deadline = time.monotonic() + timeout_s

    async def call(server: JoinedServer) -> Status | str:
        try:
            async with asyncio.timeout_at(deadline):
                return await retry_until(deadline, lambda: fleet.status(server, timeout_s))
        except TimeoutError:
            return ServerUnreachable.code
        except TurnpointError as error:
            return error.code

    answers = await each(fleet.controlled, call)
    reports: list[ServerReport] = []
    lost: dict[str, str] = {}
    for item in answers:
        if (reason := _why_not_held(item.answer, checkpoint_id)) is not None:
            lost[item.server.name] = reason
        elif isinstance(item.answer, Status):
            reports.append(report(item, counts=item.answer.counts))
    if lost:
        raise _not_held(lost)
    return reports


async def renew(fleet: Fleet, checkpoint_id: str, lease_s: float) -> set[str]:
    """Extend the leases, one try for each server.

    Returns:
        Names of the servers that hold this checkpoint and have extended its lease.
    """

    async def call(server: JoinedServer) -> bool:
        request = RenewRequest(**fleet.ids(server), checkpoint_id=checkpoint_id, lease_s=lease_s)
        try:
            async with asyncio.timeout(lease_s / 3):
                return (await fleet.client.renew(server.url, server.name, request)).held
        except (TurnpointError, TimeoutError):
            return False  # the lease goes on as it was, and `confirm_held` decides

    return {item.server.name for item in await each(fleet.controlled, call) if item.answer}


async def resume_servers(
    client: GymClient,
    servers: Sequence[JoinedServer],
    incarnation: int,
    checkpoint_id: str,
    unreachable_s: float = UNREACHABLE_S,
) -> list[ServerReport]:
    """Open every server again, after a save or as its abort: resources, models, agents.

    A server that stays unreachable for `unreachable_s`, is another instance, or refuses, counts
    as resumed and is named in its report's `note`; the next kind goes on. Never raises because
    of a server: a server that was not reached opens at the end of its lease.
    """
    fleet = Fleet(client, servers, incarnation)

    async def call(server: JoinedServer) -> str | None:
        request = ResumeRequest(**fleet.ids(server), checkpoint_id=checkpoint_id)
        deadline = time.monotonic() + unreachable_s
        try:
            async with asyncio.timeout_at(deadline):
                await retry_until(deadline, lambda: client.resume(server.url, server.name, request))
        except (ServerUnreachable, TimeoutError):
            return "unreachable"
        except StaleInstance:
            return "another instance"
        except TurnpointError as error:
            return error.code
        return None

    reports = []
    for kind in RESUME:
        answers = await each(fleet.of(kind), call)
        reports += [report(item, note=item.answer) for item in answers]
    return reports


def _not_held(lost: dict[str, str]) -> NotHeld:
    first, reason = next(iter(lost.items()))
    return NotHeld(
        f"{len(lost)} servers no longer have this checkpoint, first {first}: {reason}",
        participant=first,
        details={"servers": lost},
    )


def _why_not_held(answer: Status | str, checkpoint_id: str) -> str | None:
    if isinstance(answer, str):
        return answer
    if answer.checkpoint_id != checkpoint_id:
        return f"{answer.phase.value}, held by {answer.checkpoint_id or 'no checkpoint'}"
    if answer.phase is not Phase.COMMITTED:
        return answer.phase.value
    if answer.lease_left_s is None or answer.lease_left_s <= 0:
        return "its lease has ended"
    return None
