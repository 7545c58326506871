"""Runs under way on the agent servers, and what their finished results still owe.

Guarantees: a run is sent as one detached task, joined by every repeat of the request, and goes on
whether or not anybody waits for it. It outlives any number of saves: a closed server and a lost
connection are met by the same call with the same ids, after a pause. A result is kept until it is
acknowledged. A newer run of a rollout ends the older one's task.

Not guaranteed: anything across a death of this process; the caller sends its runs again and
`/run` joins them on the agent.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gym.protocol import (
    HEADER_LAST_MODEL_CALL_ID,
    HEADER_RESOURCE_REVISIONS,
    HEADER_RESULT_DIGEST,
    AcknowledgeRequest,
    CheckpointParked,
    DeadlineExceeded,
    DigestMismatch,
    ForgetRequest,
    Identity,
    Kind,
    LedgerRow,
    ServerFault,
    ServerUnreachable,
    StaleAttempt,
    parse_json,
)
from gym.retry import retry
from gym.single_flight import SingleFlight
from rl.errors import ChainBroken
from rl.messages import JoinedServer, RunRequest, RunResult
from rl.nemo_gym.fleet import Fleet, each

T = TypeVar("T")
ACKNOWLEDGE_S = 5.0
"""Seconds for the repeats of one acknowledge; the controller repeats it as long as it is owed."""


class Runs:
    """All runs of one incarnation, on one event loop.

    Args:
        fleet: The servers that joined.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._flights = SingleFlight[tuple[str, int]]("this run")
        """By rollout id and run; results are recorded until they are acknowledged."""
        self._newest: dict[str, int] = {}
        """Newest run of each rollout."""

    async def run(self, request: RunRequest) -> RunResult:
        """Send a run and wait for its end; a repeat joins it, or gets the result that is kept.

        Raises:
            StaleAttempt: A newer run of the rollout is known here or on a server.
            ServerUnfit: There is no such agent.
            DigestMismatch: The result is not the one that its agent digested.
            ChainBroken: The ledger does not hold the chain of calls that ended the rollout.
            TurnpointError: Another refusal of the agent or the model server. A repeat after it
                sends the run again.
        """
        rollout_id, attempt = request.rollout_id, request.attempt_index
        newest = self._newest.get(rollout_id)
        if newest is not None and newest > attempt:
            raise _stale(rollout_id, attempt)
        if newest is not None and newest < attempt:
            self._flights.cancel((rollout_id, newest), _stale(rollout_id, newest))
        self._newest[rollout_id] = attempt
        return await self._flights.run(
            (rollout_id, attempt), None, lambda: self._finished(request), record=lambda _: True
        )

    async def acknowledge(
        self, rollout_id: str, attempt_index: int, digest: str, agent: str
    ) -> None:
        """Tell the servers that a result is RL's own; repeatable.

        In this order, so that a crash in between leaves it owed and the repeat ends it: model and
        resource servers forget the rollout, the agent releases the result, the agent forgets. If
        a newer run is under way here, only its old result is released.

        Raises:
            ResultConflict: The agent's result has another digest.
            ServerUnreachable: A server did not answer for 5 s; it is still owed.
        """
        server = self._fleet.agent(agent)
        over = self._newest.get(rollout_id, attempt_index) <= attempt_index
        if over:
            await self._forget(self._fleet.of(Kind.MODEL, Kind.RESOURCE), rollout_id)
        await self._release(server, rollout_id, attempt_index, digest)
        if over:
            await self._forget([server], rollout_id)
        self._flights.forget((rollout_id, attempt_index))
        # A newer run may have taken its place while the servers were asked.
        if (
            self._newest.get(rollout_id) == attempt_index
            and (rollout_id, attempt_index) not in self._flights
        ):
            del self._newest[rollout_id]

    async def let_go(self, rollout_id: str, agent: str) -> None:
        """Have the agent drop a run that has failed for RL; repeatable, before the next is sent.

        The agent may keep its result, which is never acknowledged: every save would wait for it.

        Raises:
            ServerUnreachable: The agent did not answer for 5 s, or a save holds the run as long.
        """
        await self._forget([self._fleet.agent(agent)], rollout_id)

    async def forget(self, rollout_id: str, agent: str) -> None:
        """Have every server drop what it holds of a rollout that has failed for good; repeatable.

        It is never acknowledged, so sessions, receipts, ledger rows and fences would stay, and be
        written into every snapshot. The agent first: it refuses while a save has counted the run,
        and what a save has counted stays on the other servers until then, too; and a run that it
        has let go makes no further call.

        Raises:
            ServerUnreachable: A server did not answer for 5 s, or a save holds the run as long.
        """
        await self.let_go(rollout_id, agent)
        await self._forget(self._fleet.of(Kind.MODEL, Kind.RESOURCE), rollout_id)
        newest = self._newest.pop(rollout_id, None)
        if newest is not None:  # a result that must not be taken over
            self._flights.cancel((rollout_id, newest), _stale(rollout_id, newest))

    async def aclose(self) -> None:
        """End all tasks; the runs go on at the agents."""
        await self._flights.aclose()

    # --- one run ------------------------------------------------------------------------------

    async def _finished(self, request: RunRequest) -> RunResult:
        agent = self._fleet.agent(request.agent)
        policy = self._fleet.policy()
        identity = Identity(
            incarnation=self._fleet.incarnation,
            rollout_id=request.rollout_id,
            attempt=request.attempt_index,
        )
        client = self._fleet.client
        answer, headers = await _until_answered(
            lambda: client.run(agent.url, agent.name, identity, request.row)
        )
        digest = headers.get(HEADER_RESULT_DIGEST)
        if digest != hashlib.sha256(answer).hexdigest():
            raise DigestMismatch(
                "the result is not what its agent digested", participant=agent.name
            )
        records: Sequence[LedgerRow] = []
        if (last := headers.get(HEADER_LAST_MODEL_CALL_ID)) is not None:
            ledger = await _until_answered(
                lambda: client.manifest(policy.url, policy.name, identity.capture_key)
            )
            records = chain(ledger.records, last)
        return RunResult(
            rollout_id=request.rollout_id,
            attempt_index=request.attempt_index,
            agent=agent.name,
            reward=_reward(answer, agent.name),
            result_digest=digest,
            result=answer,
            records=list(records),
            resource_revisions=_revisions(headers.get(HEADER_RESOURCE_REVISIONS), agent.name),
        )

    # --- its end ------------------------------------------------------------------------------

    async def _forget(self, servers: Sequence[JoinedServer], rollout_id: str) -> None:
        async def call(server: JoinedServer) -> None:
            request = ForgetRequest(**self._fleet.ids(server), rollout_ids=[rollout_id])
            await self._fleet.client.forget(server.url, server.name, request)

        await _soon(servers, call)

    async def _release(
        self, agent: JoinedServer, rollout_id: str, attempt_index: int, digest: str
    ) -> None:
        async def call(server: JoinedServer) -> None:
            request = AcknowledgeRequest(
                **self._fleet.ids(server),
                rollout_id=rollout_id,
                attempt_index=attempt_index,
                result_digest=digest,
            )
            await self._fleet.client.acknowledge(server.url, server.name, request)

        await _soon([agent], call)


def chain(records: Sequence[LedgerRow], last: str) -> list[LedgerRow]:
    """The calls that lead to the call `last`, oldest first: what became of the rollout.

    Calls that were issued and led nowhere (a run that started over) are not among them.

    Raises:
        ChainBroken: A call is missing, there twice, or its own ancestor.
    """
    by_call = {record.model_call_id: record for record in records}
    if len(by_call) != len(records):
        raise ChainBroken("a model call is in the ledger twice")
    found: list[LedgerRow] = []
    call: str | None = last
    while call is not None:
        record = by_call.pop(call, None)
        if record is None:
            raise ChainBroken(
                f"{call} is not in the ledger, or is its own ancestor",
                details={"model_call_id": call, "last_model_call_id": last},
            )
        found.append(record)
        call = record.parent_model_call_id
    return found[::-1]


async def _until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Make the same call until a server that is open answers it.

    Neither error is a failure of the run (design section 4). `not_joined` is one: the agent, or a
    server that it calls, was started again and has lost its state.
    """
    return await retry(call, on=(CheckpointParked, ServerUnreachable))


async def _soon(
    servers: Sequence[JoinedServer], call: Callable[[JoinedServer], Awaitable[None]]
) -> None:
    try:
        await each(servers, call, time.monotonic() + ACKNOWLEDGE_S)
    except DeadlineExceeded as silent:
        # Not `deadline_exceeded`: it is still owed, and repeated by the controller.
        raise ServerUnreachable(silent.message, participant=silent.participant) from None


def _reward(answer: bytes, agent: str) -> float:
    try:
        result = parse_json(answer)
    except ValueError:
        result = None
    reward = result.get("reward") if isinstance(result, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ServerFault("the verify answer has no reward", participant=agent)
    return float(reward)


def _revisions(header: str | None, agent: str) -> dict[str, int | None]:
    try:
        found = json.loads(header) if header is not None else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        value is None or isinstance(value, int) for value in found.values()
    ):
        raise ServerFault(f"{HEADER_RESOURCE_REVISIONS} does not parse", participant=agent)
    return found


def _stale(rollout_id: str, attempt_index: int) -> StaleAttempt:
    return StaleAttempt(
        f"a newer run than {attempt_index} is known",
        details={"rollout_id": rollout_id, "attempt_index": attempt_index},
    )
