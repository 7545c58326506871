"""The supervisor's log: each event is a line on the terminal, in a file, and in the summary.

The log is `<state_dir>/logs/supervisor.log` (`turnpoint logs supervisor`), one JSON object a
line. Nothing of a rollout is in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gym.protocol import TurnpointError
from workers.errors import WorkerRoomError

LOG_NAME = "supervisor"


What = Literal["restored", "started_over", "restarted", "failed_try", "adopted", "unanswered"]


class Event(BaseModel):
    """One thing that was noticed and answered."""

    model_config = ConfigDict(frozen=True)

    ts: float
    """Seconds since the epoch."""
    what: What
    reasons: list[str] = []
    processes: list[str] = []
    """Started again, where no restore was needed."""
    incarnation: int | None = None
    snapshot: str | None = None
    took_s: float | None = None


class LastSave(BaseModel):
    """The outcome of the save that a SIGTERM asked for."""

    model_config = ConfigDict(frozen=True)

    outcome: Literal["published", "unchanged", "none", "not_finished", "failed"]
    snapshot: str | None = None
    """The newest there is, if the job was saved or needed no save."""
    reason: str | None = None


class Summary(BaseModel):
    """The end of `turnpoint run`, for scripts."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    incarnation: int
    state: str
    """The controller's last word, `terminated` (SIGTERM), `stopped` or `given_up`."""
    reason: str | None = None
    code: str | None = None
    """`job_finished`: it had finished before, and nothing was started."""
    rollouts_total: int = 0
    finished: int = 0
    failed: int = 0
    failures: dict[str, int] = {}
    """Failed rollouts by the code of the error that ended their last run."""
    next: str | None = None
    """The command that shows the failures in full."""
    restores: int = 0
    """Times that the job was brought back, from a snapshot or from its start."""
    restarts: int = 0
    """Processes without state that were started again under the live job."""
    reasons: list[str] = []
    """Why, in order; one for each loss."""
    events: list[Event] = []
    last_save: LastSave | None = None


class EventLog:
    """The log of one `turnpoint run`.

    Args:
        folder: Folder of the logs.
        on_message: Called with each line, for a terminal.
    """

    def __init__(self, folder: Path, on_message: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{LOG_NAME}.log"
        self._on_message = on_message
        self.events: list[Event] = []

    def write(self, event: str, text: str, **fields: object) -> None:
        """Write one line to the terminal and to the log."""
        self._on_message(text)
        line = {"ts": time.time(), "level": "info", "server": LOG_NAME, "event": event}
        with self._log.open("a") as log:
            log.write(json.dumps({**line, "message": text, **fields}, default=str) + "\n")

    def write_failed_try(self, error: WorkerRoomError | TurnpointError, then: str = "") -> None:
        """Write the first line of an error."""
        first_line = str(error).partition("\n")[0]
        self.write("failed_try", f"{error.code}: {first_line}{then}")

    def add(self, what: What, **fields: Any) -> None:
        """Keep an event of `Event`'s fields for the summary."""
        self.events.append(Event(ts=time.time(), what=what, **fields))

    @property
    def restores(self) -> int:
        """Times that the job was brought back."""
        return sum(event.what in ("restored", "started_over") for event in self.events)

    @property
    def restarts(self) -> int:
        """Processes that were started again under the live job."""
        return sum(len(event.processes) for event in self.events if event.what == "restarted")

    @property
    def reasons(self) -> list[str]:
        """Sentences about what was lost, in order."""
        lost = [e for e in self.events if e.what not in ("failed_try", "unanswered")]
        return [reason for event in lost for reason in event.reasons]
