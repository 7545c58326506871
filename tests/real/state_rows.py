"""The states a rollout can be in at a save, the rollout that stands in each, and what is expected.

One job with one rollout for each state; all of them stand there when its save begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rl.policies.scripted import Script
from tests.twin.rows import tools_asked

SCRIPT = Script(turns=3, turns_spread=1, delay_s=0.05)
JUDGE = "judge"
MAX_STEPS = 4
"""A rollout of four turns ends by it, without a last answer of the model."""


class State(StrEnum):
    """A rollout's position when the save begins."""

    UNACKNOWLEDGED = "finished and not acknowledged"
    NOT_ARRIVED = "sent, and not accepted by the agent"
    SEEDING = "being seeded"
    SEEDED = "seeded, before its first call"
    MODEL_CALL = "in a model call"
    TOOL_STEP = "in a tool step"
    BEFORE_VERIFY = "in its last tool step: it stands before verify"
    VERIFY = "in verify, which waits for a judge"
    REDISPATCHED = "redispatched after a failed call"
    FAILING = "in a model call that fails"
    BETWEEN_TURNS = "between two turns; after the restore not sent again"
    NOT_GIVEN = "not given out by the loader"


def _assigned() -> dict[State, str]:
    """A rollout for each state; the one before verify ends by the limit of steps."""
    ids = [f"p{number}_g0" for number in range(len(State))]
    by_limit = next(one for one in ids if SCRIPT.turns_of(one) == MAX_STEPS)
    others = iter(one for one in ids if one != by_limit)
    return {state: by_limit if state is State.BEFORE_VERIFY else next(others) for state in State}


ROLLOUTS = _assigned()
LAST = ROLLOUTS[State.NOT_GIVEN]
MAX_INFLIGHT = len(State) - 2
"""All but the one that is finished and the last."""


@dataclass(frozen=True)
class Saved:
    """A snapshot's content about an unfinished rollout."""

    attempt: int = 0
    last_call: int | None = None
    """Number of the last committed model call."""
    stage: str = "loop"


@dataclass(frozen=True)
class Expected:
    """One row of the table of states."""

    agent: str | None = None
    """The agent's work for it when the save begins."""
    model: str | None = None
    """The model server's work."""
    counter: str | None = None
    """The resource server's work."""
    saved: Saved | None = None
    """Its continuation line; None: there is none."""
    runs: tuple[str, ...] = ("started",)
    """Its runs in the saved ledger."""
    run: int | None = 1
    """The run that the restore gives; None: it gives none."""
    restarted_because: str | None = None
    ends_with: int = 1
    """The run that its training row is of."""


EXPECTED = {
    State.UNACKNOWLEDGED: Expected(agent="result", runs=("finished",), run=None, ends_with=0),
    State.NOT_ARRIVED: Expected(runs=("waiting",)),
    State.SEEDING: Expected(agent="seed", counter="seed", saved=Saved(stage="seeded")),
    State.SEEDED: Expected(agent="model_call", saved=Saved(stage="seeded")),
    State.MODEL_CALL: Expected(agent="model_call", model="model_call", saved=Saved(last_call=1)),
    State.TOOL_STEP: Expected(agent="tool", counter="tool", saved=Saved(last_call=1)),
    State.BEFORE_VERIFY: Expected(
        agent="tool", counter="tool", saved=Saved(last_call=3, stage="verify")
    ),
    State.VERIFY: Expected(
        agent="verify", counter="verify", runs=("finished",), run=None, ends_with=0
    ),
    State.REDISPATCHED: Expected(
        agent="tool",
        counter="tool",
        saved=Saved(attempt=1, last_call=1),
        runs=("failed", "started"),
        run=2,
        ends_with=2,
    ),
    State.FAILING: Expected(
        agent="model_call",
        model="model_call",
        saved=Saved(last_call=0),
        runs=("failed", "waiting"),
        run=2,
        restarted_because="its run had failed",
        ends_with=2,
    ),
    State.BETWEEN_TURNS: Expected(agent="model_call", saved=Saved(last_call=1), ends_with=2),
    State.NOT_GIVEN: Expected(runs=(), run=None, ends_with=0),
}


def revision_after(rollout_id: str, last_call: int | None) -> int:
    """The session's revision once all steps of a call are applied: a seed, one for each step."""
    calls = range(0 if last_call is None else last_call + 1)
    return 1 + sum(len(tools_asked(SCRIPT, rollout_id, call)) for call in calls)


def mutations_of(rollout_id: str) -> int:
    """All mutations of a rollout: seed, steps, verify."""
    return revision_after(rollout_id, SCRIPT.turns_of(rollout_id) - 1) + 1
