"""The end of a job for a command: its sentence, its next step, its exit code."""

from __future__ import annotations

from rl.messages import ControllerStatus
from workers.cli.output import EXIT_FAILED, EXIT_OK
from workers.config.settings import Settings
from workers.supervisor.event_log import Summary

End = ControllerStatus | Summary


def ended(end: End) -> str:
    """The state and the counts in a clause, with the number of failures of each code."""
    codes = ", ".join(f"{code}: {count}" for code, count in end.failures.items())
    counts = f"{end.state}: {end.finished} finished, {end.failed} failed"
    return counts + (f" ({codes})" if codes else "")


def next_step(failed: int, settings: Settings) -> str | None:
    """The commands that show the failures in full; None without a failed rollout."""
    if not failed:
        return None
    agents = [server.name for server in settings.servers if server.kind == "agent"] or ["AGENT"]
    return "look at " + ", ".join(f"`turnpoint logs {name}`" for name in agents)


def exit_code(end: End) -> int:
    """0 for a job that has finished, unless every rollout of it has failed; else 1."""
    all_failed = end.failed > 0 and end.finished == 0
    return EXIT_OK if end.state == "finished" and not all_failed else EXIT_FAILED
