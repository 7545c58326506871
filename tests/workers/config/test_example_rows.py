"""NeMo Gym's example rows, or the next step without them."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from workers.config.example_rows import example_rows
from workers.errors import SettingsError


def test_the_rows_are_there_and_are_rows() -> None:
    path = example_rows()
    assert path.is_absolute()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows and all("responses_create_params" in row for row in rows)


def test_without_the_package_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(SettingsError, match="--rows"):
        example_rows()
