"""Start of the command line: `turnpoint` (by `turnpoint_program`) and `python -m workers`.

Guarantees: Ctrl-C during the imports, which take a second or two, ends the program with one line,
never a stack trace. Nothing but the standard library is imported before that holds.
"""

from __future__ import annotations

import json
import os
import signal
import sys

_EXIT_INTERRUPTED = 130
_MESSAGE = "interrupted before anything was done"


def _leave(number: int, frame: object) -> None:
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": "interrupted", "message": _MESSAGE}}), flush=True)
    else:
        print(f"turnpoint: {_MESSAGE}", file=sys.stderr, flush=True)
    os._exit(_EXIT_INTERRUPTED)  # an exception could be swallowed by a half-done import


def main() -> None:
    """Import the command line and run it."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # else the caller wants it ignored
        signal.signal(signal.SIGINT, _leave)
    from workers.cli import app as cli

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
