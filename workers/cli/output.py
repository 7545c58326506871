"""The printing of the command line: results on stdout, progress on stderr, JSON for scripts.

With `--json` stdout holds exactly one JSON value, also when the command fails:
`{"error": {"code": ..., "message": ...}}`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.status import Status

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_NOT_REACHABLE = 0, 1, 2, 3, 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
PIPE_WIDTH = 160

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 refused or skipped; "
    "4 what it needs does not answer; 130 interrupted (the stack, the job and workflows go on); "
    "143 `run` ended by SIGTERM (what its last save did is in its output)."
)


class Output:
    """The terminal, pipes or files that one command prints to.

    Args:
        as_json: Print the result as JSON, and no progress.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._terminal = Console(stderr=True, highlight=False)
        # In a pipe or file no window limits the width of a table.
        self._result = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)

    def line(self, text: str) -> None:
        """Print one line of progress."""
        if not self._as_json:
            self._terminal.print(text, markup=False, soft_wrap=True)

    def waiting(self, text: str) -> Status:
        """A line that changes while the command waits: `start`, `update` and `stop` it."""
        quiet = self._as_json or not self._terminal.is_terminal
        return Status(text, console=Console(quiet=True) if quiet else self._terminal)

    @property
    def is_terminal(self) -> bool:
        """True if a line that changes is visible; else lines are printed one below the other."""
        return self._terminal.is_terminal and not self._as_json

    def result(self, value: Any, text: RenderableType | None = None) -> None:
        """Print the result of the command.

        Args:
            value: A pydantic model or JSON value, for scripts.
            text: The same for a person; without it the value is printed.
        """
        if self._as_json or text is None:
            plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            print(json.dumps(plain, indent=2, default=str))
        else:
            self._result.print(text)

    def error(self, code: str, message: str) -> None:
        """Print the error that ended the command."""
        if self._as_json:
            print(json.dumps({"error": {"code": code, "message": message}}))
        else:
            self._terminal.print(f"turnpoint: {message}", markup=False, style="red", soft_wrap=True)


def flush() -> None:
    """Flush both streams: the process ends without the interpreter's clean-up."""
    sys.stdout.flush()
    sys.stderr.flush()
