"""The agent server's part of a checkpoint: runs, kept results, fences.

Guarantees (design section 6): `/run` of a known run joins it, or gets its kept result, in every
phase; an unknown run begins only while open; a result is kept until it is acknowledged; the first
call of run n+1 ends run n. A restored record stays until its run moves on.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import uuid4

from gym.agent.context import AgentContext
from gym.agent.run import AgentRun, Loop
from gym.agent.run_entry import RunEntry, RunOutcome, log_run
from gym.agent.state import (
    CONTINUATIONS_FILE,
    STATE_FILE,
    AgentExport,
    RunState,
    read_states,
)
from gym.checkpoint.fences import Fences
from gym.checkpoint.part_files import file_named, read_continuations
from gym.checkpoint.phases import Phases
from gym.protocol import (
    AcknowledgeRequest,
    Blocker,
    CommitRequest,
    Counts,
    Holdings,
    Identity,
    IdentityMismatch,
    Kind,
    Mode,
    Phase,
    RequestConflict,
    ResultConflict,
    Role,
    StaleAttempt,
    TurnpointError,
    WrittenFile,
)
from gym.single_flight import SingleFlight

_COUNTED = (Phase.PREPARED, Phase.COMMITTED)
"""Phases in which the lines of a save and the counts of `status` must stay the same."""


class AgentPart:
    """The runs of one agent server. Used on one event loop.

    Args:
        phases: The server's state machine, which also keeps runs at their boundaries.
        context: Servers that runs call, and their limits.
        loop: Work of runs between two boundaries.
    """

    kind = Kind.AGENT
    mode = Mode.EXPORT_RESTORE
    role: Role | None = None

    def __init__(self, phases: Phases, context: AgentContext, loop: Loop) -> None:
        self._phases = phases
        self._context = context
        self._loop = loop
        self._entries: dict[str, RunEntry] = {}
        """By rollout id."""
        self._running: SingleFlight[str] = SingleFlight("this run")
        self._acknowledged: dict[str, tuple[int, str]] = {}
        """Rollout id -> run and digest whose result RL owns, until it is forgotten."""
        self._fences = Fences()

    async def run(self, identity: Identity, row: dict[str, Any]) -> RunOutcome:
        """Run a rollout to its end, or join its run, or answer its kept result.

        The run goes on when the caller hangs up.

        Raises:
            CheckpointParked: Unknown run, and the server is closed.
            StaleAttempt: A newer run exists or came meanwhile, or the result was acknowledged.
            RequestConflict: The run is known with another row.
            IdentityMismatch: The headers are those of a single operation.
            InvalidRequest: The row has no input.
            TurnpointError: The run failed.
        """
        if identity.model_call_id is not None or identity.request_id is not None:
            raise IdentityMismatch("/run is about a run as a whole")
        rollout_id = identity.rollout_id
        entry = self._entries.get(rollout_id)
        if entry is None or entry.state.attempt_index != identity.attempt:
            entry = self._begin(identity, row)
        elif _given(entry.state.row) != _given(row):
            raise RequestConflict("the run is known with another row", details=entry.state.who())
        return await self._running.run(rollout_id, None, entry.finish)

    def _begin(self, identity: Identity, row: dict[str, Any]) -> RunEntry:
        self._fences.require_current(identity)
        finished, _ = self._acknowledged.get(identity.rollout_id, (-1, ""))
        if identity.attempt <= finished:
            raise StaleAttempt(
                "this run is finished",
                details={"rollout_id": identity.rollout_id, "attempt": identity.attempt},
            )
        self._phases.require_open()
        state = RunState.begin(identity.rollout_id, identity.attempt, row)
        if self._fences.admit(identity):
            self._end({identity.rollout_id}, StaleAttempt("a newer run of this rollout exists"))
        entry = self._entry(state, identity.incarnation)
        log_run("run_accepted", state)
        return entry

    async def run_anonymous(self, row: dict[str, Any]) -> dict[str, Any]:
        """The result of a run that has no identity: not kept, not saved, nowhere counted.

        It stands at its boundaries while the server is closed; the servers that it calls let its
        calls wait. It ends with the process, and when its caller hangs up.

        Raises:
            InvalidRequest: The row has no input.
            TurnpointError: The run failed.
        """
        incarnation = self._phases.incarnation
        assert incarnation is not None  # the call has waited until the server was open
        state = RunState.begin(f"anonymous-{uuid4().hex}", 0, row)
        context = self._context.without_identity()
        return await AgentRun(state, incarnation, context, self._phases, self._loop).finish()

    def _entry(self, state: RunState, incarnation: int) -> RunEntry:
        run = AgentRun(state, incarnation, self._context, self._phases, self._loop)
        entry = self._entries[state.rollout_id] = RunEntry(run)
        return entry

    def _end(self, rollout_ids: Collection[str], error: TurnpointError) -> None:
        """Drop these runs; callers that wait for one get `error`."""
        for rollout_id in rollout_ids:
            self._entries.pop(rollout_id, None)
            self._running.cancel(rollout_id, error)

    async def aclose(self) -> None:
        """End all runs: the process ends."""
        await self._running.aclose()

    # --- the part (`gym.checkpoint.part.Part`) ------------------------------------------------

    def counts(self) -> Counts:
        """Numbers of runs between two boundaries, at one, and with a kept result."""
        unfinished = self._unfinished()
        running = sum(entry.run.operation is not None for entry in unfinished)
        return Counts(
            running=running,
            parked=len(unfinished) - running,
            unacknowledged=len(self._entries) - len(unfinished),
        )

    def blockers(self) -> list[Blocker]:
        """Runs between two boundaries, and results that RL does not own yet."""
        now = time.monotonic()
        found = []
        for entry in self._entries.values():
            where = "result" if entry.outcome is not None else entry.run.operation
            if where is not None:
                found.append(
                    Blocker(
                        rollout_id=entry.state.rollout_id,
                        attempt_index=entry.state.attempt_index,
                        where=where,
                        age_s=now - entry.run.since,
                    )
                )
        return found

    def export(self, request: CommitRequest) -> AgentExport:
        """All runs without a result, as they stand; failed ones too, to be started over."""
        return AgentExport([entry.state.frozen() for entry in self._unfinished()], self.counts())

    def read(self, folder: Path, files: list[WrittenFile]) -> list[RunState]:
        """States of the saved runs; raises like `gym.agent.state.read_states`."""
        continuations = read_continuations(file_named(folder, files, CONTINUATIONS_FILE))
        return read_states(file_named(folder, files, STATE_FILE), continuations)

    def install(self, loaded: list[RunState]) -> Holdings:
        """Keep each as run n+1, parked, and refuse the runs before."""
        incarnation = self._phases.incarnation
        assert incarnation is not None
        states = [state.next_run() for state in loaded]
        for state in states:
            self._entry(state, incarnation)
            self._fences.raise_to(state.rollout_id, state.attempt_index)
        return Holdings(
            counts=self.counts(), continuations=[state.continuation() for state in states]
        )

    def drop(self) -> None:
        """Drop all runs and fences."""
        self._end(list(self._entries), self._phases.parked())
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
        attempt, digest = request.attempt_index, request.result_digest
        entry = self._entries.get(request.rollout_id)
        if entry is not None and entry.state.attempt_index == attempt:
            if entry.outcome is None or entry.outcome.digest != digest:
                raise ResultConflict("the run has another result", details=entry.state.who())
            del self._entries[request.rollout_id]
            self._acknowledged[request.rollout_id] = (attempt, digest)
        known = self._acknowledged.get(request.rollout_id)
        if known is not None and known[0] == attempt and known[1] != digest:
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
        counted = {entry.state.rollout_id for entry in self._unfinished()}
        if self._phases.phase in _COUNTED and counted & set(rollout_ids):
            raise self._phases.parked()
        self._end(rollout_ids, StaleAttempt("the rollout is finished"))
        self._fences.forget(rollout_ids)
        for rollout_id in rollout_ids:
            self._acknowledged.pop(rollout_id, None)

    def _unfinished(self) -> list[RunEntry]:
        return [entry for entry in self._entries.values() if entry.outcome is None]


def _given(row: dict[str, Any]) -> dict[str, Any]:
    """A row without NeMo Gym's run-time keys, which may differ from run to run."""
    return {key: value for key, value in row.items() if not key.startswith("_ng_")}
