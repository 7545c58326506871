"""One run of one rollout, cut at turn boundaries, the same for every style of agent.

    start -> (begin) -> seeded -> model call -> turn -> loop ... -> verify -> (end) -> result

`begin`, a turn and `end` are a `Loop`'s: `gym.agent.tool_loop` (seed, tools in order, verify) or
`gym.agent.gymnasium_loop` (reset, step, the sum of rewards).

Guarantees: the run parks only where nothing is half done (the start, before each model call,
before verify); an operation whose answer was lost is issued again with the same ids, and a
refusal by a checkpoint is waited out, so neither is ever shown to the model; an environment's
answers are, errors too. Waiting counts against no limit. A run is a task of its own: it goes on
when its caller hangs up. A server that was restarted is not waited for: the run fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from gym.agent.context import AgentContext
from gym.agent.state import RunState, Stage
from gym.checkpoint.phases import Phases
from gym.peer import PASSING, Peer, Reply
from gym.protocol import Identity, NotJoined, ServerFault, StaleInstance, model_call_id
from gym.protocol.identity import HEADER_COMMITTED_CALL
from gym.retry import retry


class Loop(Protocol):
    """Work of one style of agent between boundaries.

    One object serves all runs, so it has no state: a run remembers everything in its `RunState`.
    Every call goes through `AgentRun.mutate`.
    """

    step: str
    """Name of a turn's work after its model call, in blockers: `tool` or `step`."""

    async def begin(self, run: AgentRun) -> None:
        """Make the sessions that the run needs."""

    async def turn(self, run: AgentRun, response: dict[str, Any]) -> None:
        """Apply an answer of the model, which the conversation holds already.

        Sets the stage `verify` if no further model call is to follow.
        """

    async def end(self, run: AgentRun) -> dict[str, Any]:
        """The run's result."""


class AgentRun:
    """One run, and its place.

    Args:
        state: Place where it begins or goes on.
        incarnation: Of the job.
        context: Servers and limits.
        phases: The agent server's state machine: it keeps the run at boundaries while closed.
        loop: Its work between two boundaries.
    """

    def __init__(
        self, state: RunState, incarnation: int, context: AgentContext, phases: Phases, loop: Loop
    ) -> None:
        self.state = state
        self.context = context
        self._phases = phases
        self._loop = loop
        self._identity = Identity(
            incarnation=incarnation, rollout_id=state.rollout_id, attempt=state.attempt_index
        )
        self.operation: str | None = None
        """`seed`, `model_call`, the loop's `step` or `verify`; None at a boundary."""
        self.since = time.monotonic()
        """Time at which this operation or boundary began, on the monotonic clock."""

    async def finish(self) -> dict[str, Any]:
        """Run to the end; answers the rollout's result.

        Raises:
            TurnpointError: The run failed: it is not to be continued.
        """
        state, loop = self.state, self._loop
        if state.stage is Stage.START:
            await self._phases.wait_open()
            with self._between("seed"):
                await loop.begin(self)
                state.stage = Stage.SEEDED
        while state.stage is not Stage.VERIFY:
            response = await self._model_call()
            with self._between(loop.step):
                state.stage = Stage.LOOP
                state.conversation.extend(response["output"])
                state.usage = _added_usage(state.usage, response.get("usage"))
                state.last_response = response
                await loop.turn(self, response)
                limit = self.context.max_steps
                if limit is not None and state.steps >= limit:
                    state.stage = Stage.VERIFY
        await self._phases.wait_open()
        with self._between("verify"):
            return await loop.end(self)

    def ended(self) -> None:
        """Note that the run calls nothing more: from now on `since` is the age of its result."""
        self._stand(None)

    # --- called by a loop ---------------------------------------------------------------------

    @property
    def call_committed(self) -> bool:
        """True if the last model call has a ledger row."""
        return self.state.last_committed_model_call_id == model_call_id(self.state.steps - 1)

    def mutation_of_turn(self, number: int = 0) -> Identity:
        """Identity of step `number` of the turn that runs."""
        return self._identity.mutation(model_call_id(self.state.steps - 1), number)

    def mutation_of(self, place: str) -> Identity:
        """Identity of the run's `seed` or `verify`."""
        return self._identity.mutation(place)

    async def mutate(self, peer: Peer, path: str, body: Any, identity: Identity) -> Reply:
        """One mutation, issued with the same request id until it is answered.

        The server's receipt makes a repeat harmless.

        Raises:
            NotJoined, StaleInstance: The server was restarted: the job is lost.
        """
        state = self.state
        state.resource_state_revisions.setdefault(peer.name, None)
        cookies = state.resource_cookies.setdefault(peer.name, {})
        reply = await retry(lambda: _once(peer, path, body, identity, cookies), on=PASSING)
        cookies.update(reply.cookies)
        if reply.revision is not None:
            state.resource_state_revisions[peer.name] = reply.revision
        return reply

    # --- the model call -----------------------------------------------------------------------

    async def _model_call(self) -> dict[str, Any]:
        """The next model call, issued until it is answered; stands at the boundary in between."""
        state = self.state
        identity = self._identity.call(state.steps)
        body = state.row["responses_create_params"] | {"input": state.conversation}

        async def once() -> dict[str, Any]:
            await self._phases.wait_open()
            with self._between("model_call"):
                reply = await _once(
                    self.context.model, "v1/responses", body, identity, state.model_cookies
                )
                if reply.error is not None:
                    raise reply.error
                return self._answered(reply, identity)

        return await retry(once, on=PASSING, sleep=self._phases.next_opening)

    def _answered(self, reply: Reply, identity: Identity) -> dict[str, Any]:
        response = reply.object()
        output = response.get("output")
        if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
            raise ServerFault("a response without a list of items", participant=reply.server)
        state = self.state
        state.model_cookies |= reply.cookies
        state.steps += 1
        if reply.headers.get(HEADER_COMMITTED_CALL) == identity.model_call_id:
            state.last_committed_model_call_id = identity.model_call_id
            state.last_committed_capture_key = identity.capture_key
        return response

    # --- boundaries ---------------------------------------------------------------------------

    @contextmanager
    def _between(self, operation: str) -> Iterator[None]:
        """Be between two boundaries: a `prepare` waits for the end of this block."""
        self._stand(operation)
        try:
            yield
        finally:
            self._stand(None)

    def _stand(self, operation: str | None) -> None:
        self.operation, self.since = operation, time.monotonic()
        self._phases.changed()


async def _once(
    peer: Peer, path: str, body: Any, identity: Identity, cookies: Mapping[str, str]
) -> Reply:
    """One try of a call; raises one of `PASSING` if it is to be issued again."""
    reply = await peer.post(path, body, identity, cookies)
    _require_same_life(reply)
    reply.require_final()
    return reply


def _require_same_life(reply: Reply) -> None:
    """Raise if a server answers as a process that has not joined the job of the run.

    It was restarted, and has lost the sessions or the ledger of every rollout. A server is never
    joined to a job that runs, so the call would be repeated for ever; the run fails with this code
    instead, by which RL knows that the job is lost (design section 4). A run of a job that can go
    on never meets it: a server that a save has closed answers `checkpoint_parked`; a fresh job
    sends its first run when all servers have joined; a restored run stands parked until its agent
    is resumed, after all other servers were joined and resumed. And no snapshot has a run that
    failed like this: a save's calls name the instances that joined, from `prepare` to the cut.

    Raises:
        NotJoined, StaleInstance: It does; the server is named, and the next step.
    """
    if isinstance(error := reply.error, NotJoined | StaleInstance):
        raise type(error)(
            f"{reply.server} has not joined this job: it was restarted, and its part of the "
            "rollouts is lost (or it is none of the job's `servers`); restore the job",
            participant=reply.server,
            details={"server": reply.server},
        )


def _added_usage(total: dict[str, Any] | None, added: Any) -> dict[str, Any] | None:
    """Token counts summed, details too."""
    if not isinstance(added, dict):
        return total
    if total is None:
        return added
    summed = dict(total)
    for key, value in added.items():
        if isinstance(value, dict):
            summed[key] = _added_usage(summed.get(key) or {}, value)
        elif isinstance(value, int):
            summed[key] = (summed.get(key) or 0) + value
    return summed
