"""One run of one rollout: NeMo Gym's tool-calling loop, cut at turn boundaries.

    start -> (seed) -> seeded -> model call -> tools in order -> loop ... -> verify -> result

Guarantees: the run parks only where nothing is half done (the start, before each model call,
before verify); an operation whose answer was lost is issued again with the same ids, and a
refusal by a checkpoint is waited out, so neither is ever shown to the model; what an
environment answers, errors too, is. Waiting counts against nothing. Nobody's hanging up ends a
run: it is a task of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gym.agent_calls import Peer, Reply, is_environment_error
from gym.agent_state import RunState, Stage
from gym.backoff import Backoff
from gym.protocol import (
    Identity,
    ServerFault,
    ServerUnreachable,
    TurnpointError,
    model_call_id,
)
from gym.protocol.identity import HEADER_COMMITTED_CALL
from gym.tool_arguments import BadToolCall, tool_arguments, tool_name


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

    def peer_of(self, tool: str) -> Peer:
        """The resource server that has a tool."""
        name = self.tools.get(tool)
        return self.environment if name is None else self.resources[name]


class Gate(Protocol):
    """Whether the agent server is open; `gym.agent_part` implements it."""

    @property
    def is_open(self) -> bool:
        """Whether a run may leave its boundary."""

    async def wait_open(self) -> None:
        """Return when it may."""

    async def opened_within(self, seconds: float) -> None:
        """Return when the server opens (again), after `seconds` at the latest."""

    def changed(self) -> None:
        """A run arrived at a boundary, left one or ended."""


class AgentRun:
    """The loop of one run, and where it stands.

    Args:
        state: Where it begins or goes on.
        incarnation: Of the job.
        surroundings: Servers and limits.
        gate: Keeps it at boundaries while the agent server is closed.
    """

    def __init__(
        self, state: RunState, incarnation: int, surroundings: Surroundings, gate: Gate
    ) -> None:
        """Stand at the boundary that `state` is; nothing is called before `finish`."""
        self.state = state
        self._around = surroundings
        self._gate = gate
        self._identity = Identity(
            incarnation=incarnation, rollout_id=state.rollout_id, attempt=state.attempt_index
        )
        self.operation: str | None = None
        """What it is between two boundaries with: `seed`, `model_call`, `tool`, `verify`;
        None at a boundary."""
        self.since = time.monotonic()
        """Since when, on the monotonic clock."""

    async def finish(self) -> dict[str, Any]:
        """Run to the end; answers what the environment's verify answered.

        Raises:
            TurnpointError: The run failed: it is not to be continued.
        """
        state = self.state
        if state.stage is Stage.START:
            await self._boundary()
            await self._seed()
        while state.stage is not Stage.VERIFY:
            response = await self._model_call()
            with self._between("tool"):
                state.stage = Stage.LOOP
                await self._apply(response)
        await self._boundary()
        return await self._verify()

    def ended(self) -> None:
        """Nothing more is called: stand, from now on, with what came of it."""
        self._stand(None)

    # --- the three operations -----------------------------------------------------------------

    async def _seed(self) -> None:
        with self._between("seed"):
            for peer in self._around.resources.values():
                identity = self._identity.mutation("seed")
                reply = await self._mutate(peer, "seed_session", self.state.row, identity)
                if reply.error is not None:
                    raise reply.error
                if reply.status >= 400:
                    raise ServerFault(f"seeding: HTTP {reply.status}", participant=peer.name)
            self.state.stage = Stage.SEEDED

    async def _model_call(self) -> dict[str, Any]:
        """The next model call, issued until it is answered; stands at the boundary in between."""
        state, peer = self.state, self._around.model
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
                if not error.retryable:
                    raise error
            after_s = reply.retry_after_s if not isinstance(error, ServerUnreachable) else None
            await self._gate.opened_within(backoff.next_s() if after_s is None else after_s)

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

    async def _verify(self) -> dict[str, Any]:
        with self._between("verify"):
            state, peer = self.state, self._around.environment
            added = state.conversation[state.prompt_items :]
            response = {**(state.last_response or {}), "output": added, "usage": state.usage}
            body = {**state.row, "response": response}
            reply = await self._mutate(peer, "verify", body, self._identity.mutation("verify"))
            if reply.error is not None:
                raise reply.error
            result = reply.object()
            reward = result.get("reward")
            if isinstance(reward, bool) or not isinstance(reward, int | float):
                # A kept result that RL cannot take over would stand in the way of every save.
                raise ServerFault("the verify answer has no reward", participant=peer.name)
            state.reward = float(reward)
            return result

    # --- one turn -----------------------------------------------------------------------------

    async def _apply(self, response: dict[str, Any]) -> None:
        """Take a model's answer over and run its tools, in order: NeMo Gym's simple_agent."""
        state = self.state
        output = response["output"]
        state.conversation.extend(output)
        state.usage = _added_usage(state.usage, response.get("usage"))
        state.last_response = response
        calls = [item for item in output if item.get("type") == "function_call"]
        if response.get("incomplete_details"):
            state.stage = Stage.VERIFY
        elif not calls:
            if not any(item.get("type") == "message" for item in output):
                state.last_response = response | _nothing_said(response)
            state.stage = Stage.VERIFY
        else:
            for number, call in enumerate(calls):
                text = await self._tool(call, number)
                answer = {"type": "function_call_output", "call_id": call.get("call_id")}
                state.conversation.append(answer | {"output": text})
            limit = self._around.max_steps
            if limit is not None and state.steps >= limit:
                state.stage = Stage.VERIFY

    async def _tool(self, call: dict[str, Any], number: int) -> str:
        try:
            name = tool_name(call.get("name"))
            arguments = tool_arguments(call.get("arguments"))
        except BadToolCall as bad:
            return bad.output
        identity = self._identity.mutation(model_call_id(self.state.steps - 1), number)
        reply = await self._mutate(self._around.peer_of(name), name, arguments, identity)
        if (error := reply.error) is not None and not is_environment_error(error):
            raise error
        return reply.text

    async def _mutate(self, peer: Peer, path: str, body: Any, identity: Identity) -> Reply:
        """One mutation, issued with the same request id until it is answered."""
        state = self.state
        state.resource_state_revisions.setdefault(peer.name, None)
        backoff = Backoff()
        while True:
            after_s = None
            try:
                cookies = state.resource_cookies.get(peer.name, {})
                reply = await peer.post(path, body, identity, cookies)
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


def _nothing_said(response: dict[str, Any]) -> dict[str, Any]:
    """How NeMo Gym marks an answer that holds neither a message nor a call."""
    reason = "incomplete_reasoning" if response["output"] else "empty_output"
    metadata = (response.get("metadata") or {}) | {"ng_termination_reason": reason}
    return {"status": "incomplete", "metadata": metadata}


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
