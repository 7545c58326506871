"""The phases of a save, as seen from the Gym servers (design section 4).

Guarantees: the order of kinds is the design's, and a kind is called only after every server of
the kind before has answered; within a kind all are called at once. A phase ends by its deadline.
`resume_servers` never fails because of one server: a dead one must not keep the others paused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gym.client import GymClient
from gym.protocol import (
    Blocker,
    CommitAnswer,
    CommitRequest,
    Counts,
    DeadlineExceeded,
    Kind,
    NotReady,
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
    StatusRequest,
    TurnpointError,
    WrittenFile,
)
from gym.retry import retry_until
from rl.errors import NotHeld
from rl.messages import JoinedServer, PrepareAnswers, ServerReport
from rl.nemo_gym.fleet import Answered, Fleet, budget_s, each, own_files, report
from rl.nemo_gym.silent_servers import Silent, unless_silent

T = TypeVar("T")

PREPARE = (Kind.MODEL, Kind.AGENT, Kind.RESOURCE)
COMMIT = (Kind.AGENT, Kind.MODEL, Kind.RESOURCE)
RESUME = (Kind.RESOURCE, Kind.MODEL, Kind.AGENT)

CONTINUATIONS = "continuations.jsonl"
UNREACHABLE_S = 2.0
"""Design section 4: so long unreachable, a server counts as resumed."""
_POLL_S = 0.1


async def prepare(
    fleet: Fleet, checkpoint_id: str, budget: float, driven_s: Callable[[], float]
) -> PrepareAnswers:
    """Bring every rollout to a turn boundary: model, then agents, then resources; then status.

    Args:
        fleet: The servers.
        checkpoint_id: The save.
        budget: Seconds for all of it.
        driven_s: Seconds that the save is still driven for without another proof: the lease
            that each server gets by the call. Raises when they are over.

    Raises:
        NotReady: Servers of a kind were not ready in time, or one, of whatever kind, did not
            answer for a lease; `details["blockers"]` lists every blocker: server, who, where, for
            how long.
        TurnpointError: A server's refusal.
    """
    deadline = time.monotonic() + budget
    reports: list[ServerReport] = []
    parked = 0

    async def call(server: JoinedServer) -> PrepareAnswer | Blocker:
        request = PrepareRequest(
            **fleet.ids(server),
            checkpoint_id=checkpoint_id,
            budget_s=budget_s(deadline),
            lease_s=driven_s(),
        )
        return await fleet.client.prepare(server.url, server.name, request)

    for kind in PREPARE:
        patience_s = driven_s()
        asking = each(
            fleet.of(kind),
            lambda server: _or_silent(call, server, deadline, time.monotonic() + driven_s()),
            None,
        )
        try:
            answers = await _unless_silent(asking, fleet, patience_s)
        except Silent as silent:
            _refuse([_no_answer(name, age_s) for name, age_s in silent.servers.items()])
            raise  # `_refuse` has raised: somebody is silent
        _demand_ready(answers)
        for item in answers:
            counts = item.answer.counts if isinstance(item.answer, PrepareAnswer) else Counts()
            reports.append(report(item, counts=counts))
            parked += counts.parked if kind is Kind.AGENT else 0
    await _quiet(fleet, checkpoint_id, deadline, driven_s())
    return PrepareAnswers(servers=reports, parked=parked)


async def commit(
    fleet: Fleet,
    checkpoint_id: str,
    budget: float,
    folder: Path,
    driven_s: Callable[[], float],
) -> list[Answered[CommitAnswer]]:
    """Have every server write its part: agents, models with the agents' indexes, resources.

    Raises:
        StaleCheckpoint: Nobody drives the save any more.
        DeadlineExceeded: A server has not answered in time.
        NotHeld: One could not be reached for a whole lease.
        ServerFault: A server names files outside its own folder.
        TurnpointError: A server's refusal.
    """
    deadline = time.monotonic() + budget
    indexes: list[WrittenFile] = []

    async def call(server: JoinedServer) -> CommitAnswer:
        request = CommitRequest(
            **fleet.ids(server),
            checkpoint_id=checkpoint_id,
            budget_s=budget_s(deadline),
            folder=str(folder),
            continuation_indexes=indexes if server.kind is Kind.MODEL else [],
        )
        answer = await fleet.client.commit(server.url, server.name, request)
        if any(not file.path.startswith(own_files(server)) for file in answer.files):
            raise ServerFault("it names files outside its own folder", participant=server.name)
        return answer

    done: list[Answered[CommitAnswer]] = []
    for kind in COMMIT:
        # With nobody left to drive it, no further server is asked; and one that cannot be reached
        # for a whole lease has lost it: waiting on would keep the others paused for nothing, and
        # so would Temporal, which tries again, up to the deadline, what may pass.
        patience_s = driven_s()
        asking = each(fleet.of(kind), call, deadline, patience_s=patience_s)
        try:
            answers = await _unless_silent(asking, fleet, patience_s)
        except Silent as silent:
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


async def confirm_held(fleet: Fleet, checkpoint_id: str, budget: float = 5.0) -> list[ServerReport]:
    """Every server still has this checkpoint: same id, same instance, committed, lease alive.

    Raises:
        NotHeld: `details["servers"]` names each one that has not, and why.
    """
    deadline = time.monotonic() + budget

    async def call(server: JoinedServer) -> Status | str:
        try:
            async with asyncio.timeout_at(deadline):
                return await retry_until(deadline, lambda: status_of(fleet, server, budget))
        except TimeoutError:
            return ServerUnreachable.code
        except TurnpointError as error:
            return error.code

    answers = await each(fleet.controlled, call)
    lost = {
        item.server.name: reason
        for item in answers
        if (reason := _why_not_held(item.answer, checkpoint_id)) is not None
    }
    if lost:
        raise _not_held(lost)
    return [
        report(item, counts=item.answer.counts)
        for item in answers
        if isinstance(item.answer, Status)
    ]


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
            return False  # its lease goes on as it was; *confirmed held* will tell

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
    of a server: what could not be told ends with its lease.
    """
    fleet = Fleet(client, servers, incarnation)

    async def call(server: JoinedServer) -> str | None:
        request = ResumeRequest(**fleet.ids(server), checkpoint_id=checkpoint_id)
        give_up = time.monotonic() + unreachable_s
        try:
            async with asyncio.timeout_at(give_up):
                await retry_until(give_up, lambda: client.resume(server.url, server.name, request))
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


async def statuses(fleet: Fleet, servers: Sequence[JoinedServer] | None = None) -> list[Status]:
    """Status of every controlled server that answers; one that does not is absent."""

    async def call(server: JoinedServer) -> Status | None:
        try:
            async with asyncio.timeout(UNREACHABLE_S):
                return await status_of(fleet, server, UNREACHABLE_S)
        except (TurnpointError, TimeoutError):
            return None

    answers = await each(fleet.controlled if servers is None else servers, call)
    return [item.answer for item in answers if item.answer is not None]


async def status_of(fleet: Fleet, server: JoinedServer, read_s: float) -> Status:
    """Status of one server; an answer takes `read_s` at most."""
    request = StatusRequest(**fleet.ids(server))
    return await fleet.client.status(server.url, server.name, request, read_s=read_s)


async def _or_silent(
    call: Any, server: JoinedServer, deadline: float, give_up: float
) -> PrepareAnswer | Blocker:
    """The server's answer to `prepare`, or a blocker that says that there is none.

    One that cannot be reached until `give_up`, when its lease would have ended, is not tried on.
    """
    started = time.monotonic()
    try:
        async with asyncio.timeout_at(deadline):
            return await retry_until(min(deadline, give_up), lambda: call(server))
    except (ServerUnreachable, TimeoutError):
        age_s = time.monotonic() - started
        return Blocker(rollout_id=None, where="no_answer", age_s=age_s)


async def _unless_silent(asking: Coroutine[Any, Any, T], fleet: Fleet, patience_s: float) -> T:
    """The answers of a kind, unless a server of whatever kind is silent for a whole lease.

    Raises:
        Silent: One is: it has lost the checkpoint, and the others wait for nothing.
    """
    names = {server.name for server in fleet.controlled}
    return await unless_silent(asking, names, lambda: statuses(fleet), patience_s)


def _no_answer(server: str, age_s: float) -> dict[str, Any]:
    blocker = Blocker(rollout_id=None, where="no_answer", age_s=age_s)
    return {"server": server, **blocker.model_dump(mode="json")}


def _not_held(lost: dict[str, str]) -> NotHeld:
    first, reason = next(iter(lost.items()))
    return NotHeld(
        f"{len(lost)} servers no longer have this checkpoint, first {first}: {reason}",
        participant=first,
        details={"servers": lost},
    )


def _demand_ready(answers: Sequence[Answered[PrepareAnswer | Blocker]]) -> None:
    blockers: list[dict[str, Any]] = []
    for item in answers:
        answer = item.answer
        if isinstance(answer, PrepareAnswer) and answer.ready:
            continue
        listed = answer.blockers if isinstance(answer, PrepareAnswer) else [answer]
        # Not ready and nothing to list: the server still counts as a blocker.
        unnamed = Blocker(rollout_id=None, where="not_ready", age_s=item.ms / 1000)
        blockers += [
            {"server": item.server.name, **blocker.model_dump(mode="json")}
            for blocker in listed or [unnamed]
        ]
    _refuse(blockers)


async def _quiet(fleet: Fleet, checkpoint_id: str, deadline: float, patience_s: float) -> None:
    """Ask every server's status until none has a call in flight; all hold this checkpoint."""
    started = time.monotonic()
    busy: list[dict[str, Any]] = []
    while True:
        try:
            found = await each(
                fleet.controlled,
                lambda server: status_of(fleet, server, budget_s(deadline)),
                deadline,
                patience_s=patience_s,
            )
        except DeadlineExceeded:
            if busy:  # too little was left for this look: the last one says what was waited for
                _refuse(busy)
            raise
        except ServerUnreachable as gone:
            _refuse([_no_answer(str(gone.participant), time.monotonic() - started)])
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
                calls = Blocker(
                    rollout_id=None, where="in_flight", age_s=time.monotonic() - started
                )
                listed = status.blockers or [calls]
                busy += [{"server": name, **b.model_dump(mode="json")} for b in listed]
        if not busy:
            return
        if deadline - time.monotonic() <= _POLL_S:
            _refuse(busy)
        await asyncio.sleep(_POLL_S)


def _refuse(blockers: list[dict[str, Any]]) -> None:
    if not blockers:
        return
    first = blockers[0]
    who = f" of {first['rollout_id']}" if first["rollout_id"] else ""
    raise NotReady(
        f"{len(blockers)} blockers, first on {first['server']}: "
        f"{first['where']}{who} for {first['age_s']:.1f} s",
        participant=first["server"],
        details={"blockers": blockers},
    )


def _why_not_held(answer: Status | str, checkpoint_id: str) -> str | None:
    if isinstance(answer, str):
        return answer
    if answer.checkpoint_id != checkpoint_id:
        return f"{answer.phase.value}, held by {answer.checkpoint_id or 'nobody'}"
    if answer.phase is not Phase.COMMITTED:
        return answer.phase.value
    if answer.lease_left_s is None or answer.lease_left_s <= 0:
        return "its lease has ended"
    return None
