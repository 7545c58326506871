"""Restores that an older one has overtaken: a crash interrupted it, and it goes on in Temporal."""

from __future__ import annotations

from temporalio.exceptions import TerminatedError

CODES = {"job_alive", "superseded"}
"""Errors of a restore whose job an older restore has claimed or brought back."""


def is_overtaken(cause: BaseException, older: str) -> bool:
    """Tell whether a restore failed because the older one, with this workflow id, came first."""
    if isinstance(cause, TerminatedError):
        return cause.message == f"superseded by {older}"
    return getattr(cause, "type", None) in CODES
