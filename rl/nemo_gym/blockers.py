"""Blockers of a save: servers or rollouts that keep it from going on, and their error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym.protocol import Blocker, NotReady, PrepareAnswer
from rl.nemo_gym.fleet import Answered


def blockers_of(server: str, *blockers: Blocker) -> list[dict[str, Any]]:
    """Blockers of one server as an error's details list them."""
    return [{"server": server, **blocker.model_dump(mode="json")} for blocker in blockers]


def no_answer(age_s: float) -> Blocker:
    """The blocker for a server that has not answered for `age_s` seconds."""
    return Blocker(rollout_id=None, where="no_answer", age_s=age_s)


def not_ready(blockers: Sequence[dict[str, Any]]) -> NotReady:
    """The error with all blockers in its details, and the first in its message."""
    first = blockers[0]
    rollout = f" of {first['rollout_id']}" if first["rollout_id"] else ""
    return NotReady(
        f"{len(blockers)} blockers, first on {first['server']}: "
        f"{first['where']}{rollout} for {first['age_s']:.1f} s",
        participant=first["server"],
        details={"blockers": list(blockers)},
    )


def require_ready(answers: Sequence[Answered[PrepareAnswer | Blocker]]) -> None:
    """Raise `NotReady` unless every server of a kind answered that it is ready."""
    blockers: list[dict[str, Any]] = []
    for item in answers:
        answer = item.answer
        if isinstance(answer, Blocker):
            blockers += blockers_of(item.server.name, answer)
        elif not answer.ready:
            # A server that is not ready and lists nothing still counts as a blocker.
            unnamed = Blocker(rollout_id=None, where="not_ready", age_s=item.ms / 1000)
            blockers += blockers_of(item.server.name, *(answer.blockers or [unnamed]))
    if blockers:
        raise not_ready(blockers)
