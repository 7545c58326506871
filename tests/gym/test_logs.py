"""Log lines of a server: JSON on stderr with the server's name, and no text of an exception."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from gym.logs import configure_logging, log, log_fault


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_one_json_object_that_names_the_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("counter")
    log.info("control", extra={"event": "control", "operation": "join"})
    [line] = logged(capsys)
    assert {key: line[key] for key in ("server", "level", "logger", "event", "operation")} == {
        "server": "counter",
        "level": "info",
        "logger": "turnpoint.gym",
        "event": "control",
        "operation": "join",
    }
    assert isinstance(line["ts"], float)


def test_an_exception_is_logged_by_type_and_place_without_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Break: gym/logs.py: let `formatException` print the exception."""
    configure_logging("counter")
    try:
        raise ValueError("secret words of a conversation")
    except ValueError as error:
        log.exception("failed")
        log_fault(error, "/verify")
    failed, fault = logged(capsys)
    assert str(failed["exc_info"]).startswith("ValueError at ")
    assert (fault["event"], fault["where"], fault["error"]) == ("fault", "/verify", "ValueError")
    assert "secret words" not in json.dumps([failed, fault])
