"""Logs of a Gym server: one JSON object a line on stderr.

Keys: `ts` (seconds since the epoch), `level`, `logger`, `server`, `event`, and the event's own
ids. Guarantees: no argument of a call, no conversation and no credential is logged here.
"""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType
from typing import Any

from pythonjsonlogger.json import JsonFormatter

log = logging.getLogger("turnpoint.gym")


class _ServerFormatter(JsonFormatter):  # type: ignore[misc]  # the package is untyped here
    """Adds the server's name; leaves out exception texts (they may quote a conversation)."""

    def add_fields(
        self,
        log_data: dict[str, object],
        record: logging.LogRecord,
        message_dict: dict[str, object],
    ) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data["ts"] = record.created
        log_data["level"] = record.levelname.lower()
        log_data["logger"] = record.name
        log_data.pop("color_message", None)  # uvicorn repeats its message for terminals

    def formatException(self, ei: Any) -> str:
        kind, _, frames = ei
        return f"{kind.__name__} at {' < '.join(_places(frames))}"


def configure_logging(server: str, level: int = logging.INFO) -> None:
    """Send all logs of this process to stderr as JSON lines that name `server`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _ServerFormatter("%(message)s", static_fields={"server": server}, timestamp=False)
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_fault(error: BaseException, where: str) -> None:
    """Log an unexpected exception by its type and places, without its text."""
    log.error(
        "fault",
        extra={
            "event": "fault",
            "where": where,
            "error": type(error).__name__,
            "at": _places(error.__traceback__)[:8],
        },
    )


def _places(frames: TracebackType | None) -> list[str]:
    return [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(frames)][::-1]
