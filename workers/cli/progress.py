"""The display of a workflow or a job while a command follows it."""

from __future__ import annotations

from activities.contract import Progress, RestoreResult
from rl.messages import ControllerStatus
from workers.cli.output import Output

_UNDOING = ("unpublish_snapshot", "resume_checkpoint")


class ProgressView:
    """Finished phases one below the other, and one line below them that changes.

    Use it as a context: the changing line is shown inside it.

    Args:
        output: Where it is printed.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._status = output.waiting("starting")
        self._printed = 0
        self._line = ""

    def __enter__(self) -> ProgressView:
        """Show the changing line."""
        self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the changing line away."""
        self._status.stop()

    def on_message(self, text: str) -> None:
        """Print one line above the changing one."""
        self._output.line(text)

    def on_progress(self, progress: Progress) -> None:
        """Print each finished phase once, with counts; the running one is the changing line."""
        if len(progress.done) < self._printed:
            self._printed = 0  # another workflow
        began = any(report.phase == "begin_checkpoint" for report in progress.done)
        for report in progress.done[self._printed :]:
            if report.phase in _UNDOING and not began:
                continue  # of a save that never began: there was nothing to undo
            parts = [f"{report.phase}: {report.ms:.0f} ms"]
            for server in report.servers:
                counts = server.counts.model_dump(exclude_defaults=True)
                words = [f"{count} {what}" for what, count in counts.items()]
                parts.append(" ".join([server.server, f"{server.ms:.0f} ms", *words]))
            self._output.line(", ".join(parts))
        self._printed = len(progress.done)
        self._status.update(progress.phase or "waiting")

    def on_status(self, now: ControllerStatus) -> None:
        """Show the job's counts on the changing line; into a pipe when they have changed."""
        line = (
            f"{now.finished} of {now.rollouts_total} finished, {now.running} running"
            + (f", {now.failed} failed" if now.failed else "")
            + ("" if now.admission_open else ", paused by a save")
        )
        self._status.update(line)
        if line != self._line and not self._output.is_terminal:
            self._output.line(line)
        self._line = line


def restored(result: RestoreResult) -> str:
    """The result of a restore; every newer snapshot that was not usable is named first."""
    lines = [f"SKIPPED {reason}" for reason in result.skipped]
    lines.append(
        f"restored {result.snapshot} as incarnation {result.incarnation}: "
        f"{len(result.continued)} unfinished rollouts, {result.finished_rollouts} finished"
    )
    return "\n".join(lines)
