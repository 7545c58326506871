"""Starts processes of a stack in their order, and waits until they are ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from workers.errors import ProcessFailed
from workers.stack.process_specs import Part
from workers.stack.processes import alive, log_tail, spawn
from workers.stack.record import RunningProcess

_POLL_S = 0.1


def start_all(
    parts: Sequence[Part],
    *,
    stack_id: str,
    logs: Path,
    ready_timeout_s: float,
    abandoned: Event,
    on_started: Callable[[RunningProcess], None],
    on_message: Callable[[str], None],
) -> None:
    """Start parts, each when those that it needs are ready, and wait until all are.

    Args:
        parts: In the order in which they are started. Needed parts that are not among them are
            taken for ready.
        stack_id: Mark of the processes.
        logs: Folder of their logs.
        ready_timeout_s: Longest time from the start of a process until it is ready.
        abandoned: Once it is set the wait ends; what was started gets ready by itself, or not.
        on_started: Called with each process once it runs.
        on_message: Called with one line for each process that is ready.

    Raises:
        ProcessFailed: A process cannot be started, has ended, or was not ready in time.
    """
    names = {part.name for part in parts}
    waiting, ready = list(parts), set[str]()
    started: dict[str, _Started] = {}
    while len(ready) < len(parts) and not abandoned.is_set():
        for part in [part for part in waiting if part.after & names <= ready]:
            waiting.remove(part)
            started[part.name] = _Started(part, stack_id, logs / f"{part.name}.log")
            on_started(started[part.name].running)
        for name in started.keys() - ready:
            if started[name].is_ready(ready_timeout_s):
                ready.add(name)
                on_message(
                    f"{name} is ready after {started[name].age_s:.1f} s "
                    f"({len(ready)} of {len(parts)})"
                )
        time.sleep(_POLL_S)


class _Started:
    """A process between its start and its being ready."""

    def __init__(self, part: Part, stack_id: str, log: Path) -> None:
        self._part, self._log = part, log
        self._logged_before = log.stat().st_size if log.exists() else 0
        self._since = time.monotonic()
        try:
            self._process = spawn(
                part.name,
                part.command,
                stack_id=stack_id,
                env=part.env,
                folder=part.folder,
                log=log,
            )
        except OSError as error:
            raise ProcessFailed(
                f"{part.name} cannot be started: {error.strerror}: {error.filename}. Next: correct "
                "the server's `command` or `folder` in turnpoint.toml, then `turnpoint down` and "
                "`turnpoint up`"
            ) from None
        self.running = RunningProcess(
            name=part.name,
            pid=self._process.pid,
            create_time=self._process.create_time(),
            log=log,
            url=part.url,
        )

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._since

    def is_ready(self, timeout_s: float) -> bool:
        """True once it is ready; `ProcessFailed` if it has ended, or after `timeout_s`."""
        with self._log.open("rb") as file:
            file.seek(self._logged_before)
            output = file.read()
        if not alive(self._process):
            raise self._failed("has ended")
        if self._part.is_ready(output):
            return True
        if self.age_s > timeout_s:
            raise self._failed(f"is not ready after {timeout_s:.0f} s (ready_timeout_s)")
        return False

    def _failed(self, what: str) -> ProcessFailed:
        return ProcessFailed(
            f"{self._part.name} {what}. The last lines of its log:\n{log_tail(self._log)}\n"
            f"Next: `turnpoint logs {self._part.name}` shows all of it"
        )
