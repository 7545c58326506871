"""The newest run of each rollout that a server has seen in this incarnation (invariant 7).

Guarantees: a run older than the newest seen is refused. Memory is bounded by `forget`.
Incarnations are checked elsewhere (`Phases.identify`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gym.protocol import Identity, StaleAttempt


class Fences:
    """Highest run by rollout."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def admit(self, identity: Identity) -> bool:
        """Let a call of the newest run pass, and take note of a newer run.

        Returns:
            True if this call is the first of a higher run of a known rollout: the caller ends
            everything of the older run now.

        Raises:
            StaleAttempt: A newer run of this rollout has been seen.
        """
        self.require_current(identity)
        newest = self._newest.get(identity.rollout_id)
        self._newest[identity.rollout_id] = identity.attempt
        return newest is not None and identity.attempt > newest

    def require_current(self, identity: Identity) -> None:
        """Raise for a call of an older run, without taking note of a newer one.

        Raises:
            StaleAttempt: A newer run of this rollout has been seen.
        """
        newest = self.newest(identity.rollout_id)
        if newest is not None and identity.attempt < newest:
            raise StaleAttempt(
                "a newer run of this rollout exists",
                details={
                    "rollout_id": identity.rollout_id,
                    "attempt": identity.attempt,
                    "newest": newest,
                },
            )

    def raise_to(self, rollout_id: str, attempt: int) -> None:
        """Refuse every run below `attempt` from now on; never lowers a fence."""
        self._newest[rollout_id] = max(attempt, self._newest.get(rollout_id, attempt))

    def newest(self, rollout_id: str) -> int | None:
        """The newest run seen, or None."""
        return self._newest.get(rollout_id)

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Drop the fences of rollouts that are finished for good."""
        for rollout_id in rollout_ids:
            self._newest.pop(rollout_id, None)

    def clear(self) -> None:
        """Drop all fences (a restore that is dropped, a new incarnation)."""
        self._newest.clear()
