"""One rollout in RL's books: its runs, the staging rows it owns, its result (design section 7).

Guarantees: records are immutable and consistent. Run numbers are 0, 1, 2, ... without a gap, only
the newest run can be under way, and a rollout finishes or fails exactly once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from gym.protocol import Wire
from gym.protocol.identity import RolloutId
from gym.protocol.records import ServerName, Sha256


class RunPhase(StrEnum):
    """Progress of one run."""

    WAITING = "waiting"
    """Reserved and not sent. In a snapshot also: sent, and not accepted by an agent."""
    STARTED = "started"
    """Sent. In a snapshot: held by an agent."""
    FINISHED = "finished"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """A restore gave the rollout its next run."""


class Run(Wire):
    """One execution of a rollout."""

    attempt_index: int = Field(ge=0)
    incarnation: int = Field(ge=1)
    state: RunPhase
    failure: str | None = None
    """Code of the error that ended a failed run."""

    def ended(self, state: RunPhase, failure: str | None = None) -> Run:
        """The same run in another state."""
        return self.model_copy(update={"state": state, "failure": failure})


class RolloutRecord(Wire):
    """Everything that RL knows about one rollout."""

    rollout_id: RolloutId
    agent: ServerName
    runs: list[Run] = Field(min_length=1)
    staging_keys: list[str] = []
    """Staging rows it owns, oldest call first, whatever run staged them."""
    reward: float | None = None
    result_digest: Sha256 | None = None
    owed: bool = False
    """True while the acknowledgement of its result is owed."""

    @property
    def run(self) -> Run:
        """The newest run."""
        return self.runs[-1]

    @property
    def finished(self) -> bool:
        """True if RL has taken its result over."""
        return self.run.state is RunPhase.FINISHED

    @property
    def failed(self) -> bool:
        """True if its newest run has failed and no further run follows."""
        return self.run.state is RunPhase.FAILED

    @property
    def unfinished(self) -> bool:
        """True if a run is waiting or under way."""
        return not (self.finished or self.failed)

    @property
    def failed_runs(self) -> int:
        """Number of runs that have failed."""
        return sum(run.state is RunPhase.FAILED for run in self.runs)

    def changed(self, **update: object) -> RolloutRecord:
        """A copy with other fields.

        Raises:
            ValidationError: The copy would be inconsistent.
        """
        # `model_copy` would not validate.
        return RolloutRecord.model_validate({**dict(self), **update})

    def with_run(self, state: RunPhase, **update: object) -> RolloutRecord:
        """A copy whose newest run is in another state, and with other fields."""
        return self.changed(runs=[*self.runs[:-1], self.run.ended(state)], **update)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if [run.attempt_index for run in self.runs] != list(range(len(self.runs))):
            raise ValueError("run numbers are not 0, 1, 2, ...")
        if any(run.state not in (RunPhase.FAILED, RunPhase.SUPERSEDED) for run in self.runs[:-1]):
            raise ValueError("an older run is not over")
        if self.run.state is RunPhase.SUPERSEDED:
            raise ValueError("the newest run cannot be superseded")
        if self.finished != (self.result_digest is not None and self.reward is not None):
            raise ValueError("only a finished rollout has a reward and a digest, and it has both")
        if self.owed and not self.finished:
            raise ValueError("an acknowledgement is owed for a finished rollout only")
        if len(set(self.staging_keys)) != len(self.staging_keys):
            raise ValueError("a staging key is listed twice")
        return self
