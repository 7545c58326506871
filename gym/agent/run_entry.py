"""An accepted or restored run as the agent server keeps it, until its result is acknowledged."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from gym.agent.run import AgentRun
from gym.agent.state import RunState, Stage
from gym.logs import log_fault
from gym.protocol import ServerFault, TurnpointError, canonical_json, error_from_body

log = logging.getLogger("turnpoint.gym")


@dataclass(frozen=True)
class RunOutcome:
    """A finished result, as `/run` answers it."""

    body: bytes
    """The result in canonical JSON: serialised once, then kept, answered and compared as it is."""
    last_model_call_id: str | None
    resource_revisions: dict[str, int | None]

    @property
    def digest(self) -> str:
        """sha256 (hex) of the body."""
        return hashlib.sha256(self.body).hexdigest()


class RunEntry:
    """One run, and its outcome or failure once it has ended."""

    def __init__(self, run: AgentRun) -> None:
        self.run = run
        self.state = run.state
        self.outcome: RunOutcome | None = None
        self.failure = _failure_of(run.state)

    @property
    def ended(self) -> bool:
        """True if the run has an outcome or a failure."""
        return self.outcome is not None or self.failure is not None

    async def finish(self) -> RunOutcome:
        """Run to the end; a run that has ended answers the same again.

        Raises:
            TurnpointError: The run failed.
        """
        if not self.ended:
            await self._drive()
        if self.outcome is not None:
            return self.outcome
        assert self.failure is not None
        raise self.failure

    async def _drive(self) -> None:
        state = self.state
        if state.stage is not Stage.START:
            log_run("run_continued", state, after=state.last_committed_model_call_id)
        try:
            result = await self.run.finish()
            self.outcome = RunOutcome(
                body=canonical_json(result),
                last_model_call_id=state.last_committed_model_call_id,
                resource_revisions=dict(state.resource_state_revisions),
            )
            log_run("run_finished", state)
        except TurnpointError as error:
            self._failed(error)
        except Exception as error:
            # A fault of this server's own code: the rollout is lost for this run, not for the job.
            log_fault(error, "run")
            self._failed(ServerFault(f"the agent failed on this run ({type(error).__name__})"))
        self.run.ended()

    def _failed(self, error: TurnpointError) -> None:
        self.failure = error
        self.state.failure = error.body() | {"status": error.status}
        log_run("run_failed", self.state, code=error.code, participant=error.participant)


def log_run(event: str, state: RunState, **more: object) -> None:
    """Log an event of a run, without anything of its conversation."""
    log.info("run", extra={"event": event, **state.who(), "turns": state.steps, **more})


def _failure_of(state: RunState) -> TurnpointError | None:
    """The error of a run that was saved as failed."""
    if state.failure is None:
        return None
    return error_from_body(state.failure.get("status", 409), state.failure, participant="")
