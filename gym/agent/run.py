"""One run of one rollout, cut at turn boundaries, whatever its agent does in a turn.

    start -> (begin) -> seeded -> model call -> turn -> loop ... -> verify -> (end) -> result

What `begin`, a turn and `end` are is a `Loop`: `gym.agent.tool_loop` (seed, tools in order, verify)
or `gym.agent.gymnasium_loop` (reset, step, the sum of rewards).

Guarantees: the run parks only where nothing is half done (the start, before each model call,
before verify); an operation whose answer was lost is issued again with the same ids, and a
refusal by a checkpoint is waited out, so neither is ever shown to the model; what an
environment answers, errors too, is. Waiting counts against nothing. Nobody's hanging up ends a
run: it is a task of its own. A server that was restarted is not waited for: the run fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gym.agent.peer import Peer, Reply, refuse_another_life
from gym.agent.state import RunState, Stage
from gym.backoff import Backoff
from gym.protocol import (
    Identity,
    ServerFault,
    ServerUnreachable,
    TurnpointError,
    model_call_id,
)
from gym.protocol.identity import HEADER_COMMITTED_CALL


@dataclass(frozen=True)
class Surroundings:
    """What all runs of an agent server share.

    Attributes:
        model: The policy model server.
        resources: Resource servers by name; the first is the environment: it verifies, and has
            every tool that `tools` does not give to another.
        tools: Tool name -> name of the resource server that has it.
        max_steps: Most model calls of a run; None for no limit.
    """

    model: Peer
    resources: Mapping[str, Peer]
    tools: Mapping[str, str] = field(default_factory=dict)
    max_steps: int | None = None

    @property
    def environment(self) -> Peer:
        """The first resource server."""
        return next(iter(self.resources.values()))

    def without_identity(self) -> Surroundings:
        """The same for a run that nobody could continue: it sends no identity."""
        resources = {name: peer.without_identity() for name, peer in self.resources.items()}
        return replace(self, model=self.model.without_identity(), resources=resources)

    def peer_of(self, tool: str) -> Peer:
        """The resource server that has a tool."""
        name = self.tools.get(tool)
        return self.environment if name is None else self.resources[name]


class Gate(Protocol):
    """The agent server's admission; `gym.checkpoint.phases` implements it."""

    @property
    def is_open(self) -> bool:
        """Whether a run may leave its boundary."""

    async def wait_open(self) -> None:
        """Return when it may."""

    async def next_opening(self, timeout_s: float) -> None:
        """Return when the server opens (again), or after `timeout_s`."""

    def changed(self) -> None:
        """A run arrived at a boundary, left one or ended."""


class Loop(Protocol):
    """What one style of agent does between boundaries.

    One object serves all runs, so it keeps nothing of any: what a run has to remember stands in
    its `RunState`. Every call goes through `AgentRun.mutate`.
    """

    step: str
    """Name of what a turn does after its model call, in blockers: `tool` or `step`."""

    async def begin(self, run: AgentRun) -> None:
        """Make the sessions that the run needs."""

    async def turn(self, run: AgentRun, response: dict[str, Any]) -> None:
        """Apply an answer of the model, which the conversation holds already.

        Sets the stage `verify` if no further model call is to follow.
        """

    async def end(self, run: AgentRun) -> dict[str, Any]:
        """The run's result."""


class AgentRun:
    """One run, and where it stands.

    Args:
        state: Where it begins or goes on.
        incarnation: Of the job.
        surroundings: Servers and limits.
        gate: Keeps it at boundaries while the agent server is closed.
        loop: What it does between them.
    """

    def __init__(
        self,
        state: RunState,
        incarnation: int,
        surroundings: Surroundings,
        gate: Gate,
        loop: Loop,
    ) -> None:
        """Stand at the boundary that `state` is; nothing is called before `finish`."""
        self.state = state
        self.around = surroundings
        self._gate = gate
        self._loop = loop
        self._identity = Identity(
            incarnation=incarnation, rollout_id=state.rollout_id, attempt=state.attempt_index
        )
        self.operation: str | None = None
        """What it is between two boundaries with: `seed`, `model_call`, the loop's `step`,
        `verify`; None at a boundary."""
        self.since = time.monotonic()
        """Since when, on the monotonic clock."""

    async def finish(self) -> dict[str, Any]:
        """Run to the end; answers the rollout's result.

        Raises:
            TurnpointError: The run failed: it is not to be continued.
        """
        state, loop = self.state, self._loop
        if state.stage is Stage.START:
            await self._boundary()
            with self._between("seed"):
                await loop.begin(self)
                state.stage = Stage.SEEDED
        while state.stage is not Stage.VERIFY:
            response = await self._model_call()
            with self._between(loop.step):
                state.stage = Stage.LOOP
                self._take_over(response)
                await loop.turn(self, response)
                limit = self.around.max_steps
                if limit is not None and state.steps >= limit:
                    state.stage = Stage.VERIFY
        await self._boundary()
        with self._between("verify"):
            return await loop.end(self)

    def ended(self) -> None:
        """Nothing more is called: stand, from now on, with what came of it."""
        self._stand(None)

    # --- what a loop calls --------------------------------------------------------------------

    @property
    def call_committed(self) -> bool:
        """Whether the last model call has a ledger row."""
        return self.state.last_committed_model_call_id == model_call_id(self.state.steps - 1)

    def mutation_of_turn(self, number: int = 0) -> Identity:
        """Identity of step `number` of the turn that runs."""
        return self._identity.mutation(model_call_id(self.state.steps - 1), number)

    def mutation_of(self, place: str) -> Identity:
        """Identity of the run's `seed` or `verify`."""
        return self._identity.mutation(place)

    async def mutate(self, peer: Peer, path: str, body: Any, identity: Identity) -> Reply:
        """One mutation, issued with the same request id until it is answered.

        Raises:
            NotJoined, StaleInstance: The server was restarted: the job is lost.
        """
        state = self.state
        state.resource_state_revisions.setdefault(peer.name, None)
        backoff = Backoff()
        while True:
            after_s = None
            try:
                cookies = state.resource_cookies.get(peer.name, {})
                reply = await peer.post(path, body, identity, cookies)
                refuse_another_life(reply.error, peer.name)
                if (error := reply.error) is None or not error.retryable:
                    break
                after_s = reply.retry_after_s
            except ServerUnreachable:
                pass  # the server's receipt makes the repeat harmless
            await asyncio.sleep(backoff.next_s() if after_s is None else after_s)
        state.resource_cookies[peer.name] = (
            state.resource_cookies.get(peer.name, {}) | reply.cookies
        )
        if reply.revision is not None:
            state.resource_state_revisions[peer.name] = reply.revision
        return reply

    # --- the model call -----------------------------------------------------------------------

    async def _model_call(self) -> dict[str, Any]:
        """The next model call, issued until it is answered; stands at the boundary in between."""
        state, peer = self.state, self.around.model
        identity = self._identity.call(state.steps)
        params = state.row["responses_create_params"]
        body = params | {"input": state.conversation}
        backoff = Backoff()
        while True:
            await self._boundary()
            with self._between("model_call"):
                try:
                    reply = await peer.post("v1/responses", body, identity, state.model_cookies)
                    error: TurnpointError | None = reply.error
                except ServerUnreachable as unreachable:
                    error = unreachable
                if error is None:
                    return self._answered(reply, identity)
                refuse_another_life(error, peer.name)
                if not error.retryable:
                    raise error
            after_s = reply.retry_after_s if not isinstance(error, ServerUnreachable) else None
            await self._gate.next_opening(backoff.next_s() if after_s is None else after_s)

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

    def _take_over(self, response: dict[str, Any]) -> None:
        state = self.state
        state.conversation.extend(response["output"])
        state.usage = _added_usage(state.usage, response.get("usage"))
        state.last_response = response

    # --- boundaries ---------------------------------------------------------------------------

    async def _boundary(self) -> None:
        """Stay here while the agent server is closed."""
        while not self._gate.is_open:
            await self._gate.wait_open()

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
        self._gate.changed()


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
