"""The agent server's part of a checkpoint: runs, kept results, fences.

Guarantees (design section 6): `/run` of a run that is held joins it, or gets its kept result, in
every phase; an unknown run begins only while open; a result is kept until it is acknowledged;
the first call of run n+1 ends run n. A restored record stays until its run moves on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from gym.agent.run import AgentRun, Loop, Surroundings
from gym.agent.state import (
    CONTINUATIONS_FILE,
    STATE_FILE,
    RunState,
    Stage,
    read_states,
    write_states,
)
from gym.checkpoint.fences import Fences
from gym.checkpoint.part_files import PartWriter
from gym.checkpoint.phases import Phases
from gym.logs import log_fault
from gym.model.ledger_files import file_named, read_continuations
from gym.protocol import (
    AcknowledgeRequest,
    Blocker,
    CommitRequest,
    Counts,
    Holdings,
    Identity,
    IdentityMismatch,
    InvalidRequest,
    Kind,
    Mode,
    Phase,
    RequestConflict,
    ResultConflict,
    Role,
    ServerFault,
    StaleAttempt,
    TurnpointError,
    WrittenFile,
    digest_of,
    error_from_body,
)

log = logging.getLogger("turnpoint.gym")
_COUNTED = (Phase.PREPARED, Phase.COMMITTED)
"""Phases in which the lines of a save and the counts of `status` must stay the same."""


@dataclass(frozen=True)
class RunOutcome:
    """A finished result, as `/run` answers it."""

    result: dict[str, Any]
    digest: str
    last_model_call_id: str | None
    resource_revisions: dict[str, int | None]


@dataclass(frozen=True)
class AgentExport:
    """The runs as they stood when the commit began."""

    states: list[RunState]
    counts: Counts

    def write(self, writer: PartWriter) -> Holdings:
        """Write state and continuation index."""
        write_states(writer, self.states)
        return Holdings(
            counts=self.counts, continuations=[state.continuation() for state in self.states]
        )


class HeldRun:
    """One accepted run: its loop once started, then its outcome or failure."""

    def __init__(self, run: AgentRun) -> None:
        """Hold `run` without starting it (a restored record)."""
        self.run = run
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.outcome: RunOutcome | None = None
        self.failure: TurnpointError | None = _failure_of(run.state)
        if self.failure is not None:
            self.ended.set()

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self.run.state

    def start(self) -> None:
        """Let the loop run; idempotent."""
        if self.task is None and not self.ended.is_set():
            self.task = asyncio.create_task(self._drive())

    def end(self, error: TurnpointError) -> None:
        """End the run from outside; who waits for it gets `error`."""
        if self.task is not None:
            self.task.cancel()
        if not self.ended.is_set():
            self.failure = error
            self.ended.set()

    async def answer(self) -> RunOutcome:
        """The outcome, as soon as there is one.

        Raises:
            TurnpointError: The run failed, or was ended.
        """
        await self.ended.wait()
        if self.outcome is not None:
            return self.outcome
        assert self.failure is not None
        raise self.failure

    async def _drive(self) -> None:
        try:
            self.outcome = _outcome(await self.run.finish(), self.state)
            _say("run_finished", self.state)
        except TurnpointError as error:
            self._failed(error)
        except Exception as error:
            # A fault of this server's own code: the rollout is lost for this run, not for the job.
            log_fault(error, "run")
            self._failed(ServerFault(f"the agent failed on this run ({type(error).__name__})"))
        self.ended.set()
        self.run.ended()

    def _failed(self, error: TurnpointError) -> None:
        self.failure = error
        self.state.failure = error.body() | {"status": error.status}
        _say("run_failed", self.state, code=error.code, participant=error.participant)


class AgentPart:
    """What the agent server holds. Used on one event loop.

    Args:
        phases: The server's state machine, which is also the runs' gate.
        surroundings: Servers that runs call, and their limits.
        loop: What runs do between two boundaries.
    """

    kind = Kind.AGENT
    mode = Mode.EXPORT_RESTORE
    role: Role | None = None

    def __init__(self, phases: Phases, surroundings: Surroundings, loop: Loop) -> None:
        self._phases = phases
        self._around = surroundings
        self._loop = loop
        self._held: dict[str, HeldRun] = {}
        self._acknowledged: dict[str, tuple[int, str]] = {}
        """Rollout id -> run and digest whose result RL owns, until it is forgotten."""
        self._fences = Fences()

    def accept(self, identity: Identity, row: dict[str, Any]) -> HeldRun:
        """The run that a `/run` call is about, started.

        Raises:
            CheckpointParked: Unknown run, and the server is closed.
            StaleAttempt: A newer run exists, or the result was acknowledged.
            RequestConflict: The run is held with another row.
            IdentityMismatch: The headers are those of a single operation.
            InvalidRequest: The row has no input.
        """
        if identity.model_call_id is not None or identity.request_id is not None:
            raise IdentityMismatch("/run is about a run as a whole")
        held = self._held.get(identity.rollout_id)
        if held is None or held.state.attempt_index != identity.attempt:
            held = self._begin(identity, row)
        elif _given(held.state.row) != _given(row):
            raise RequestConflict("the run is held with another row", details=_who(held.state))
        if held.task is None and held.state.stage is not Stage.START:
            _say("run_continued", held.state, after=held.state.last_committed_model_call_id)
        held.start()
        return held

    def _begin(self, identity: Identity, row: dict[str, Any]) -> HeldRun:
        self._fences.require_current(identity)
        finished, _ = self._acknowledged.get(identity.rollout_id, (-1, ""))
        if identity.attempt <= finished:
            raise StaleAttempt(
                "this run is finished",
                details={"rollout_id": identity.rollout_id, "attempt": identity.attempt},
            )
        self._phases.require_open()
        state = _begun(identity.rollout_id, identity.attempt, row)
        if self._fences.admit(identity):
            self._end({identity.rollout_id}, StaleAttempt("a newer run of this rollout exists"))
        held = HeldRun(self._run(state, identity.incarnation))
        self._held[identity.rollout_id] = held
        _say("run_accepted", state)
        return held

    async def run_unidentified(self, row: dict[str, Any]) -> dict[str, Any]:
        """The result of a run that has no identity: not held, not saved, nowhere counted.

        It stands at its boundaries while the server is closed; what it calls is held by the
        servers that are called. It ends with the process, and when its caller hangs up.

        Raises:
            InvalidRequest: The row has no input.
            TurnpointError: The run failed.
        """
        incarnation = self._phases.incarnation
        assert incarnation is not None  # it was held until the server was open
        state = _begun(f"unidentified-{uuid4().hex}", 0, row)
        around = self._around.without_identity()
        return await AgentRun(state, incarnation, around, self._phases, self._loop).finish()

    def _run(self, state: RunState, incarnation: int) -> AgentRun:
        return AgentRun(state, incarnation, self._around, self._phases, self._loop)

    def _end(self, rollout_ids: Collection[str], error: TurnpointError) -> None:
        for rollout_id in rollout_ids:
            if (held := self._held.pop(rollout_id, None)) is not None:
                held.end(error)

    async def aclose(self) -> None:
        """End all runs: the process ends."""
        tasks = [held.task for held in self._held.values() if held.task is not None]
        self._end(list(self._held), ServerFault("the agent server is being stopped"))
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what `Participant` calls; see `gym.checkpoint.part.Part` ---------------------------------

    def counts(self) -> Counts:
        """Runs by what they do."""
        unfinished = self._unfinished()
        running = sum(held.run.operation is not None for held in unfinished)
        return Counts(
            running=running,
            parked=len(unfinished) - running,
            unacknowledged=len(self._held) - len(unfinished),
        )

    def blockers(self) -> list[Blocker]:
        """Runs between two boundaries, and results that RL does not own yet."""
        now = time.monotonic()
        found = []
        for held in self._held.values():
            where = "result" if held.outcome is not None else held.run.operation
            if where is not None:
                found.append(
                    Blocker(
                        rollout_id=held.state.rollout_id,
                        attempt_index=held.state.attempt_index,
                        where=where,
                        age_s=now - held.run.since,
                    )
                )
        return sorted(found, key=lambda blocker: -blocker.age_s)

    def export(self, request: CommitRequest) -> AgentExport:
        """All runs without a result, as they stand; failed ones too, to be started over."""
        states = [held.state.frozen() for held in self._unfinished()]
        return AgentExport(states, self.counts())

    def read(self, folder: Path, files: list[WrittenFile]) -> list[RunState]:
        """States of the saved runs; raises like `gym.agent.state.read_states`."""
        continuations = read_continuations(file_named(folder, files, CONTINUATIONS_FILE))
        return read_states(file_named(folder, files, STATE_FILE), continuations)

    def install(self, loaded: list[RunState]) -> Holdings:
        """Hold each as run n+1, parked, and refuse the runs before."""
        incarnation = self._phases.incarnation
        assert incarnation is not None
        states = [state.next_run() for state in loaded]
        for state in states:
            self._held[state.rollout_id] = HeldRun(self._run(state, incarnation))
            self._fences.raise_to(state.rollout_id, state.attempt_index)
        return Holdings(
            counts=self.counts(), continuations=[state.continuation() for state in states]
        )

    def drop(self) -> None:
        """Drop all runs and fences."""
        self._end(list(self._held), self._phases.parked())
        self._acknowledged.clear()
        self._fences.clear()

    def discard(self, rollout_ids: Collection[str]) -> None:
        """Drop the records of these rollouts; their runs n+1 begin anew when they are sent."""
        self._end(rollout_ids, self._phases.parked())

    def acknowledge(self, request: AcknowledgeRequest) -> None:
        """Release a result, once RL owns it.

        Raises:
            ResultConflict: The run has another result, or none yet.
        """
        key = (request.attempt_index, request.result_digest)
        held = self._held.get(request.rollout_id)
        if held is not None and held.state.attempt_index == request.attempt_index:
            if held.outcome is None or held.outcome.digest != request.result_digest:
                raise ResultConflict("the run has another result", details=_who(held.state))
            del self._held[request.rollout_id]
            self._acknowledged[request.rollout_id] = key
        known = self._acknowledged.get(request.rollout_id)
        if known is not None and known[0] == key[0] and known[1] != key[1]:
            raise ResultConflict(
                "the result was acknowledged with another digest",
                details={"rollout_id": request.rollout_id},
            )

    def forget(self, rollout_ids: Collection[str]) -> None:
        """Drop all that is left of finished rollouts, and runs that have failed for RL.

        Raises:
            CheckpointParked: A save has counted one of these runs, or is about to: it is dropped
                after the resume.
        """
        counted = {held.state.rollout_id for held in self._unfinished()}
        if self._phases.phase in _COUNTED and counted & set(rollout_ids):
            raise self._phases.parked()
        self._end(rollout_ids, StaleAttempt("the rollout is finished"))
        self._fences.forget(rollout_ids)
        for rollout_id in rollout_ids:
            self._acknowledged.pop(rollout_id, None)

    def _unfinished(self) -> list[HeldRun]:
        return [held for held in self._held.values() if held.outcome is None]


def _begun(rollout_id: str, attempt: int, row: dict[str, Any]) -> RunState:
    try:
        return RunState.begin(rollout_id, attempt, row)
    except ValueError:
        raise InvalidRequest(
            "does not parse: responses_create_params.input",
            details={"fields": ["responses_create_params.input"]},
        ) from None


def _outcome(result: dict[str, Any], state: RunState) -> RunOutcome:
    return RunOutcome(
        result=result,
        digest=digest_of(result),
        last_model_call_id=state.last_committed_model_call_id,
        resource_revisions=dict(state.resource_state_revisions),
    )


def _failure_of(state: RunState) -> TurnpointError | None:
    """The error of a run that was saved as failed."""
    if state.failure is None:
        return None
    return error_from_body(state.failure.get("status", 409), state.failure, participant="")


def _given(row: dict[str, Any]) -> dict[str, Any]:
    """A row without NeMo Gym's run-time keys, which may differ from run to run."""
    return {key: value for key, value in row.items() if not key.startswith("_ng_")}


def _who(state: RunState) -> dict[str, Any]:
    return {"rollout_id": state.rollout_id, "attempt": state.attempt_index}


def _say(event: str, state: RunState, **more: object) -> None:
    log.info("run", extra={"event": event, **_who(state), "turns": state.steps, **more})
