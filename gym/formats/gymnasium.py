"""Answers of `/reset` and `/step`: NeMo Gym's shapes, the same for server and agent."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SUPPORTS_IDEMPOTENCY = "supports_step_idempotency"
"""In the info of `/reset`: the server wants `STEP_REQUEST_ID` in the bodies of `/step`."""
STEP_REQUEST_ID = "_ng_step_request_id"


class _Shape(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, allow_inf_nan=False)


class ResetAnswer(_Shape):
    """Answer of `/reset`."""

    observation: str | None = None
    info: dict[str, Any] = Field(default_factory=dict)


class ToolOutput(_Shape):
    """Text that a model which acted by a tool call reads as that call's output."""

    call_id: str
    output: str


class StepInfo(_Shape):
    """The keys of a step's info that an agent acts on; the others pass through."""

    model_config = ConfigDict(extra="allow")

    tool_outputs: list[ToolOutput] = []


class StepAnswer(_Shape):
    """Answer of `/step`."""

    observation: str | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: StepInfo = Field(default_factory=StepInfo)

    @property
    def over(self) -> bool:
        """True if the episode ended with this step."""
        return self.terminated or self.truncated
