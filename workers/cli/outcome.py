"""How a command's end tells of rollouts that failed: how many, why, and where to look."""

from __future__ import annotations

from collections.abc import Mapping

from workers.config.settings import Settings


def ended(state: str, finished: int, failed: int, failures: Mapping[str, int]) -> str:
    """How a job ended, in a clause; the codes of the failures with their counts, if there are any.

    Args:
        state: What it ended as.
        finished: Rollouts that finished.
        failed: Rollouts whose runs are used up.
        failures: Of these, how many ended with each code.
    """
    codes = ", ".join(f"{code}: {count}" for code, count in failures.items())
    return f"{state}: {finished} finished, {failed} failed" + (f" ({codes})" if codes else "")


def next_step(failed: int, settings: Settings) -> str | None:
    """Where the failures are told in full; None without one."""
    if not failed:
        return None
    agents = [server.name for server in settings.servers if server.kind == "agent"] or ["AGENT"]
    return "look at " + ", ".join(f"`turnpoint logs {name}`" for name in agents)


def all_failed(finished: int, failed: int) -> bool:
    """Whether a job that has ended has nothing to show for it: exit code 1."""
    return failed > 0 and finished == 0
