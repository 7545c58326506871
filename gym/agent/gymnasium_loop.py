"""NeMo Gym's gymnasium_agent: reset, then model calls each followed by one step.

Guarantees: the reward is the sum over the steps, in order; the observation of the reset becomes
part of the prompt, those of the steps and the tool outputs part of the response; an episode
that `max_steps` or the model's context cuts is truncated. A step's request id is the same
however often it is issued. Not here: NeMo Gym's optional `/close`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from gym.agent.run import AgentRun
from gym.agent.state import Stage
from gym.formats.gymnasium import STEP_REQUEST_ID, SUPPORTS_IDEMPOTENCY, ResetAnswer, StepAnswer
from gym.peer import Reply
from gym.protocol import ServerFault

A = TypeVar("A", ResetAnswer, StepAnswer)


class GymnasiumLoop:
    """The gymnasium loop (see `gym.agent.run.Loop`)."""

    step = "step"

    async def begin(self, run: AgentRun) -> None:
        """Reset the environment; its first observation ends the prompt."""
        state, peer = run.state, run.context.environment
        reply = await run.mutate(peer, "reset", state.row, run.mutation_of("seed"))
        answer = _parsed(ResetAnswer, reply)
        state.reset_info = answer.info
        if answer.observation:
            state.conversation.append({"role": "user", "content": answer.observation})
            state.prompt_items += 1

    async def turn(self, run: AgentRun, response: dict[str, Any]) -> None:
        """Let the environment act on the model's answer."""
        state, peer = run.state, run.context.environment
        identity = run.mutation_of_turn()
        body = {**state.row, "response": response}
        if (state.reset_info or {}).get(SUPPORTS_IDEMPOTENCY) is True:
            body[STEP_REQUEST_ID] = identity.request_id
        answer = _parsed(StepAnswer, await run.mutate(peer, "step", body, identity))
        state.last_step = answer.model_dump(mode="json")
        state.reward += answer.reward
        if answer.over:
            state.stage = Stage.VERIFY
            return
        for given in answer.info.tool_outputs:
            state.conversation.append({"type": "function_call_output", **given.model_dump()})
        if answer.observation:
            state.conversation.append({"role": "user", "content": answer.observation})
        empty = response.get("incomplete_details") and not response["output"]
        if empty and not run.call_committed:
            # The prompt no longer fits into the model's context, and it only grows. Such a call
            # has no ledger row, so none may follow it.
            state.stage = Stage.VERIFY

    async def end(self, run: AgentRun) -> dict[str, Any]:
        """The row with prompt, response, reward and how the episode ended; calls nothing."""
        state = run.state
        last = StepAnswer.model_validate(state.last_step or {})
        prompt = state.conversation[: state.prompt_items]
        added = state.conversation[state.prompt_items :]
        return {
            **state.row,
            "responses_create_params": {**state.row["responses_create_params"], "input": prompt},
            "response": {**(state.last_response or {}), "output": added, "usage": state.usage},
            "reward": state.reward,
            "terminated": last.terminated,
            "truncated": last.truncated or not last.over,
            "info": last.info.model_dump(mode="json"),
        }


def _parsed(shape: type[A], reply: Reply) -> A:
    if reply.error is not None:
        raise reply.error
    try:
        return shape.model_validate(reply.object())
    except ValidationError as error:
        fields = sorted({str(item["loc"][0]) for item in error.errors()})
        raise ServerFault(
            f"an answer that does not parse: {', '.join(fields)}", participant=reply.server
        ) from None
