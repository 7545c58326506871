"""NeMo Gym's simple_agent: seed, then model calls whose tools run in order, then verify.

Guarantees: the model is shown an environment's answer to a tool, errors too, and the reason why a
call cannot be sent; it is never shown a typed refusal of this protocol, which fails the run.
"""

from __future__ import annotations

from typing import Any

from gym.agent.run import AgentRun
from gym.agent.state import Stage
from gym.formats.tool_calls import BadToolCall, tool_arguments, tool_name
from gym.protocol import InvalidRequest, ServerFault


class ToolLoop:
    """The tool-calling loop (see `gym.agent.run.Loop`)."""

    step = "tool"

    async def begin(self, run: AgentRun) -> None:
        """Seed a session on every resource server."""
        for peer in run.context.resources.values():
            reply = await run.mutate(peer, "seed_session", run.state.row, run.mutation_of("seed"))
            if reply.error is not None:
                raise reply.error
            if reply.status >= 400:
                raise ServerFault(f"seeding: HTTP {reply.status}", participant=peer.name)

    async def turn(self, run: AgentRun, response: dict[str, Any]) -> None:
        """Run the tools that the model asked for; without any, its answer is the last."""
        state, output = run.state, response["output"]
        calls = [item for item in output if item.get("type") == "function_call"]
        if response.get("incomplete_details"):
            state.stage = Stage.VERIFY
        elif not calls:
            if not any(item.get("type") == "message" for item in output):
                state.last_response = response | _nothing_said(response)
            state.stage = Stage.VERIFY
        else:
            for number, call in enumerate(calls):
                text = await self._tool(run, call, number)
                answer = {"type": "function_call_output", "call_id": call.get("call_id")}
                state.conversation.append(answer | {"output": text})

    async def end(self, run: AgentRun) -> dict[str, Any]:
        """Verify the finished conversation; returns the environment's verify answer."""
        state, peer = run.state, run.context.environment
        added = state.conversation[state.prompt_items :]
        response = {**(state.last_response or {}), "output": added, "usage": state.usage}
        body = {**state.row, "response": response}
        reply = await run.mutate(peer, "verify", body, run.mutation_of("verify"))
        if reply.error is not None:
            raise reply.error
        result = reply.object()
        reward = result.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            # A kept result that RL cannot take over would stand in the way of every save.
            raise ServerFault("the verify answer has no reward", participant=peer.name)
        state.reward = float(reward)
        return result

    async def _tool(self, run: AgentRun, call: dict[str, Any], number: int) -> str:
        try:
            name = tool_name(call.get("name"))
            arguments = tool_arguments(call.get("arguments"))
        except BadToolCall as bad:
            return bad.output
        identity = run.mutation_of_turn(number)
        reply = await run.mutate(run.context.peer_of(name), name, arguments, identity)
        # NeMo Gym shows to the model every untyped answer, and arguments that the tool refuses.
        if (error := reply.error) is not None and not isinstance(error, InvalidRequest):
            raise error
        return reply.text


def _nothing_said(response: dict[str, Any]) -> dict[str, Any]:
    """Fields with which NeMo Gym marks an answer that has neither a message nor a call."""
    reason = "incomplete_reasoning" if response["output"] else "empty_output"
    metadata = (response.get("metadata") or {}) | {"ng_termination_reason": reason}
    return {"status": "incomplete", "metadata": metadata}
