"""NeMo Gym's example rows, as the package `nemo-gym` installs them (for its data alone)."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from workers.errors import SettingsError

ROWS = "resources_servers/example_session_state_mgmt/data/example.jsonl"
"""Five rows: add two numbers to a counter, then ask for it."""


def example_rows() -> Path:
    """Absolute path of the rows.

    Raises:
        SettingsError: The package is not installed.
    """
    try:
        path = Path(str(importlib.metadata.distribution("nemo-gym").locate_file(ROWS)))
    except importlib.metadata.PackageNotFoundError:
        path = Path()
    if not path.is_file():
        raise SettingsError(
            "no example rows: install nemo-gym with `--no-deps --ignore-requires-python` "
            "(`make install` does), or name a JSONL file with --rows"
        )
    return path.absolute()
