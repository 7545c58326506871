"""The printing of a command: one JSON value on stdout for scripts, text for a person."""

from __future__ import annotations

import json

import pytest
from rich.table import Table

from workers.cli.output import PIPE_WIDTH, Output


def test_a_script_gets_one_json_value_and_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Break: print a line of progress in any case."""
    output = Output(as_json=True)
    output.line("starting")
    with output.waiting("starting"):
        output.result({"ended": 2}, "2 processes ended")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"ended": 2}
    assert printed.err == ""


def test_a_script_gets_an_error_on_stdout_a_person_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(as_json=True).error("refused", "it runs [already]")
    error = {"code": "refused", "message": "it runs [already]"}
    assert json.loads(capsys.readouterr().out) == {"error": error}
    Output(as_json=False).error("refused", "it runs [already]")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "turnpoint: it runs [already]\n")


def test_a_table_in_a_pipe_keeps_its_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Break: leave the width to rich, which cuts at 80."""
    table = Table("file")
    table.add_row("x" * 120)
    Output(as_json=False).result([], table)
    assert "x" * 120 in capsys.readouterr().out
    assert PIPE_WIDTH > 120
