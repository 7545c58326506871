"""The route table of the design's section 6, row by row and phase by phase."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym.checkpoint.participant import Participant
from gym.protocol import (
    JoinRequest,
    Phase,
    StaleCheckpoint,
    StaleIncarnation,
    TurnpointError,
)
from tests.gym.parts import (
    Caller,
    checkpoint_folder,
    participant_in,
    participant_of,
)

P = Phase
OPEN, PREPARING, PREPARED, COMMITTED = P.OPEN, P.PREPARING, P.PREPARED, P.COMMITTED
AWAITING, RESTORING, RESTORED = P.AWAITING_RESTORE, P.RESTORING, P.RESTORED

# (operation, id) -> for each phase: the phase afterwards, or the code of the refusal.
# `own` is the id that holds the server in that phase, `other` one that it has never seen.
PHASES = (P.CLOSED, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED)
CONFLICT, INVALID, NOT_JOINED = "checkpoint_conflict", "invalid_phase", "not_joined"
STALE = "stale_incarnation"
TABLE: dict[tuple[str, str], tuple[Phase | str, ...]] = {
    ("join", "same"): (OPEN, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED),
    ("join", "higher"): (OPEN, STALE, STALE, STALE, STALE, AWAITING, AWAITING, AWAITING),
    ("prepare", "own"): (
        NOT_JOINED, PREPARED, PREPARING, PREPARED, COMMITTED, INVALID, INVALID, INVALID,
    ),
    ("prepare", "other"): (
        NOT_JOINED, PREPARED, CONFLICT, CONFLICT, CONFLICT, INVALID, CONFLICT, CONFLICT,
    ),
    ("renew", "own"): (
        NOT_JOINED, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED,
    ),
    ("renew", "other"): (
        NOT_JOINED, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED,
    ),
    ("commit", "own"): (
        NOT_JOINED, INVALID, INVALID, COMMITTED, COMMITTED, INVALID, INVALID, INVALID,
    ),
    ("commit", "other"): (
        NOT_JOINED, INVALID, CONFLICT, CONFLICT, CONFLICT, INVALID, CONFLICT, CONFLICT,
    ),
    ("resume", "own"): (P.CLOSED, OPEN, OPEN, OPEN, OPEN, AWAITING, INVALID, OPEN),
    ("resume", "other"): (
        P.CLOSED, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED,
    ),
    ("restore", "own"): (
        NOT_JOINED, INVALID, INVALID, INVALID, INVALID, RESTORED, RESTORED, RESTORED,
    ),
    ("restore", "other"): (
        NOT_JOINED, INVALID, CONFLICT, CONFLICT, CONFLICT, RESTORED, CONFLICT, CONFLICT,
    ),
    ("reset", "own"): (
        NOT_JOINED, INVALID, INVALID, INVALID, INVALID, AWAITING, AWAITING, AWAITING,
    ),
    ("reset", "other"): (
        NOT_JOINED, INVALID, INVALID, INVALID, INVALID, AWAITING, CONFLICT, CONFLICT,
    ),
    ("discard", "own"): (
        NOT_JOINED, INVALID, INVALID, INVALID, INVALID, INVALID, INVALID, RESTORED,
    ),
    ("discard", "other"): (
        NOT_JOINED, INVALID, CONFLICT, CONFLICT, CONFLICT, INVALID, CONFLICT, CONFLICT,
    ),
    ("forget", "-"): (
        NOT_JOINED, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED,
    ),
    ("status", "-"): (
        P.CLOSED, OPEN, PREPARING, PREPARED, COMMITTED, AWAITING, RESTORING, RESTORED,
    ),
}  # fmt: skip
CASES = [
    (operation, which, phase, expected)
    for (operation, which), row in TABLE.items()
    for phase, expected in zip(PHASES, row, strict=True)
]


async def call(
    participant: Participant, caller: Caller, operation: str, which: str, phase: Phase, root: Path
) -> object:
    folder = checkpoint_folder(root)
    saving = phase in (PREPARING, PREPARED, COMMITTED)
    own = "ck" if saving else "rs" if phase in (RESTORING, RESTORED) else "mine"
    name = own if which == "own" else "unheard-of"
    save, restore = participant.save, participant.restore
    serve: Callable[[Any], object]
    serve, request = {
        "join": (participant.join, lambda: caller.join(2 if which == "higher" else 1)),
        "prepare": (save.prepare, lambda: caller.prepare(name, budget_s=0.01)),
        "renew": (save.renew, lambda: caller.renew(name)),
        "commit": (save.commit, lambda: caller.commit(folder, name)),
        "resume": (save.resume, lambda: caller.resume(name)),
        "restore": (restore.load, lambda: caller.restore(folder, name)),
        "reset": (restore.reset, lambda: caller.reset(name)),
        "discard": (restore.discard, lambda: caller.discard(name)),
        "forget": (participant.forget, lambda: caller.forget("p0_g0")),
        "status": (participant.status, caller.status),
    }[operation]
    answer = serve(request())
    return await answer if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize(("operation", "which", "phase", "expected"), CASES)
async def test_every_row_in_every_phase(
    operation: str, which: str, phase: Phase, expected: Phase | str, tmp_path: Path
) -> None:
    participant, part, caller = await participant_in(phase, tmp_path)
    if phase is RESTORING and (operation, which) in {
        ("restore", "own"), ("reset", "own"), ("join", "higher"),
    }:  # fmt: skip
        part.read_gate.set()  # these wait for the running restore
    try:
        if isinstance(expected, Phase):
            answer = await call(participant, caller, operation, which, phase, tmp_path)
            assert participant.phases.phase is expected
            recorded = operation in ("prepare", "restore") and phase in (COMMITTED, RESTORED)
            assert recorded or answer.phase is expected  # type: ignore[attr-defined]
        else:
            with pytest.raises(TurnpointError) as refusal:
                await call(participant, caller, operation, which, phase, tmp_path)
            assert refusal.value.code == expected
            assert participant.phases.phase is phase
    finally:
        part.read_gate.set()
        participant.shut_down()


@pytest.mark.parametrize("phase", PHASES[1:])
@pytest.mark.parametrize(
    "operation",
    ["status", "prepare", "renew", "commit", "resume", "restore", "reset", "discard", "forget"],
)
async def test_another_incarnation_or_instance_is_refused_everywhere(
    operation: str, phase: Phase, tmp_path: Path
) -> None:
    participant, part, _ = await participant_in(phase, tmp_path)
    try:
        with pytest.raises(TurnpointError) as refusal:
            await call(participant, Caller(participant, 2), operation, "own", phase, tmp_path)
        assert refusal.value.code == "stale_incarnation"
        other = Caller(participant)
        other.participant = participant_of(part, tmp_path)
        with pytest.raises(TurnpointError) as refusal:
            await call(participant, other, operation, "own", phase, tmp_path)
        assert refusal.value.code == "stale_instance"
        assert participant.phases.phase is phase
    finally:
        part.read_gate.set()
        participant.shut_down()


async def test_join_of_another_job_or_an_older_incarnation_is_refused(tmp_path: Path) -> None:
    participant, _, caller = await participant_in(Phase.AWAITING_RESTORE, tmp_path)
    await participant.join(caller.join(3))
    with pytest.raises(StaleIncarnation):
        await participant.join(caller.join(2))
    with pytest.raises(StaleIncarnation):
        await participant.join(JoinRequest(job_id="another", incarnation=4))
    assert participant.phases.incarnation == 3


async def test_a_higher_join_drops_what_was_restored_and_stops_a_running_restore(
    tmp_path: Path,
) -> None:
    participant, part, caller = await participant_in(Phase.RESTORING, tmp_path)
    joining = asyncio.ensure_future(participant.join(caller.join(2)))
    await asyncio.sleep(0.02)
    assert not joining.done()
    part.read_gate.set()
    assert (await asyncio.wait_for(joining, 1)).phase is Phase.AWAITING_RESTORE
    assert "install" not in part.events
    caller.incarnation = 2
    with pytest.raises(StaleCheckpoint):
        await participant.restore.load(caller.restore(checkpoint_folder(tmp_path)))
    answer = await participant.restore.load(caller.restore(checkpoint_folder(tmp_path), "again"))
    assert answer.phase is Phase.RESTORED
