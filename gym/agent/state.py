"""State of one run of an agent server, and the two files that runs are saved in.

Guarantees: a state that is read back equals the one that was written, key order included: chat
templates print tool schemas and arguments in the order they came, so a sorted copy would change
the prompt. `continuations.jsonl` has exactly the design's fields, one line for each line of
`agent_state.jsonl`, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gym.checkpoint.part_files import PartWriter
from gym.protocol import (
    SCHEMA_VERSION,
    UNCERTAIN_REVISION,
    Continuation,
    Counts,
    DigestMismatch,
    Holdings,
    InvalidRequest,
    UnsupportedSchema,
    capture_key,
)
from gym.protocol.identity import RolloutId

STATE_FILE = "agent_state.jsonl"
CONTINUATIONS_FILE = "continuations.jsonl"
JsonObject = dict[str, Any]


class Stage(StrEnum):
    """Stages of a run (design section 6, what each kind saves)."""

    START = "start"
    """No server was called yet."""
    SEEDED = "seeded"
    """The sessions exist; no model call was answered."""
    LOOP = "loop"
    VERIFY = "verify"
    """No further model call: the result is to be verified."""


class RunState(BaseModel):
    """One run between two operations. Mutable: its `AgentRun` and `Loop` change it.

    Items of the conversation are never changed once appended, so a shallow copy with copied
    containers is a frozen copy.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    rollout_id: RolloutId
    attempt_index: int = Field(ge=0)
    stage: Stage = Stage.START
    row: JsonObject
    """The dataset row as it came."""
    conversation: list[Any]
    """Input items of the row, then everything the model and the tools added."""
    prompt_items: int = Field(ge=0)
    """Number of items of the conversation that came with the row."""
    usage: JsonObject | None = None
    """Sum over all model calls."""
    model_cookies: dict[str, str] = {}
    resource_cookies: dict[str, dict[str, str]] = {}
    """By resource server."""
    steps: int = Field(default=0, ge=0)
    """Model calls answered; also the index of the next one."""
    reward: float = 0.0
    """Reward so far."""
    last_step: JsonObject | None = None
    """Answer of the last environment step (gymnasium-style servers)."""
    reset_info: JsonObject | None = None
    """Info of the environment's reset (gymnasium-style servers)."""
    last_response: JsonObject | None = None
    """The last answer of the model server."""
    last_committed_model_call_id: str | None = None
    last_committed_capture_key: str | None = None
    """Of the run that made that call."""
    resource_state_revisions: dict[str, int | None] = {}
    """Every resource server called; null where it keeps no revision."""
    failure: JsonObject | None = None
    """Code and message of the error that ended the run: its rollout starts over."""

    @classmethod
    def begin(cls, rollout_id: str, attempt: int, row: JsonObject) -> RunState:
        """The state of a run that has called nothing yet.

        Raises:
            InvalidRequest: The row has no `responses_create_params` with an input.
        """
        params = row.get("responses_create_params")
        given = params.get("input") if isinstance(params, dict) else None
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        if not isinstance(given, list):
            field = "responses_create_params.input"
            raise InvalidRequest(f"does not parse: {field}", details={"fields": [field]})
        return cls(
            rollout_id=rollout_id,
            attempt_index=attempt,
            row=row,
            conversation=list(given),
            prompt_items=len(given),
        )

    def who(self) -> JsonObject:
        """Rollout and run, for logs and the details of errors."""
        return {"rollout_id": self.rollout_id, "attempt": self.attempt_index}

    def frozen(self) -> RunState:
        """A copy that the run does not change any more."""
        return self.model_copy(
            update={
                "conversation": list(self.conversation),
                "model_cookies": dict(self.model_cookies),
                "resource_cookies": {
                    server: dict(cookies) for server, cookies in self.resource_cookies.items()
                },
                "resource_state_revisions": dict(self.resource_state_revisions),
            }
        )

    def next_run(self) -> RunState:
        """The same place as run n+1."""
        return self.frozen().model_copy(update={"attempt_index": self.attempt_index + 1})

    def continuation(self) -> Continuation:
        """The line that names the last committed call and the revisions of the sessions."""
        revisions = self.resource_state_revisions
        if self.failure is not None:
            # The effect of the failed operation is unknown: no session may be continued.
            revisions = dict.fromkeys(revisions, UNCERTAIN_REVISION)
        return Continuation(
            rollout_id=self.rollout_id,
            attempt_index=self.attempt_index,
            capture_key=self.last_committed_capture_key
            or capture_key(self.rollout_id, self.attempt_index),
            last_committed_model_call_id=self.last_committed_model_call_id,
            resource_state_revisions=dict(revisions),
        )


@dataclass(frozen=True)
class AgentExport:
    """The runs as they stood when the commit began."""

    states: list[RunState]
    counts: Counts

    def write(self, writer: PartWriter) -> Holdings:
        """Write states and continuation index."""
        lines = []
        for state in self.states:
            writer.raise_if_stopped()
            # Not canonical JSON, which sorts keys. In ASCII any string survives, also a lone
            # surrogate.
            fields = {name: getattr(state, name) for name in RunState.model_fields}
            lines.append(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        writer.bytes(STATE_FILE, b"".join(lines))
        continuations = [state.continuation() for state in self.states]
        writer.jsonl(CONTINUATIONS_FILE, continuations)
        return Holdings(counts=self.counts, continuations=continuations)


def read_states(state_file: Path, continuations: Iterable[Continuation]) -> list[RunState]:
    """Read the states, and check that they are those that the continuations name.

    Raises:
        UnsupportedSchema: A line that does not parse, or another schema version.
        DigestMismatch: The two files do not fit together.
    """
    try:
        states = [
            RunState.model_validate(json.loads(line))
            for line in state_file.read_bytes().split(b"\n")[:-1]
        ]
    except (ValidationError, ValueError):
        raise UnsupportedSchema(f"{state_file.name} holds a line that does not parse") from None
    named = [state.continuation() for state in states]
    if named != list(continuations) or len({c.rollout_id for c in named}) != len(named):
        raise DigestMismatch(f"{STATE_FILE} and {CONTINUATIONS_FILE} do not fit together")
    return states
