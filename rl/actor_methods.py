"""Parts of each actor of a job: the fence of incarnations, and control calls that never queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import ray

from gym.protocol import StaleIncarnation

MethodT = TypeVar("MethodT", bound=Callable[..., Any])
CONTROL_GROUPS = {"control": 64}
"""`concurrency_groups` of an actor with methods that `control` marks."""


def control(method: MethodT) -> MethodT:
    """Run the method in a concurrency group of its own, which no queue of other calls delays."""
    return cast(MethodT, ray.method(concurrency_group="control")(method))


def require_incarnation(given: int, own: int, actor: str) -> None:
    """Raise `StaleIncarnation` for a call of another incarnation than the actor's own."""
    if given != own:
        raise StaleIncarnation(f"this is incarnation {own}", participant=actor)
