"""The fan-out of control calls to the Gym servers, as plain functions without Ray.

The NemoGym actor uses them for everything that concerns rollouts; activities themselves only for
`discover_and_join`, and for the abort when the actor is gone (design section 3).
"""

from rl.joining import discover_and_join
from rl.restore_phases import discard, reset_servers, restore, resume_restored
from rl.save_phases import (
    UNREACHABLE_S,
    commit,
    confirm_held,
    prepare,
    renew,
    resume_servers,
    statuses,
)

__all__ = [
    "UNREACHABLE_S",
    "commit",
    "confirm_held",
    "discard",
    "discover_and_join",
    "prepare",
    "renew",
    "reset_servers",
    "restore",
    "resume_restored",
    "resume_servers",
    "statuses",
]
