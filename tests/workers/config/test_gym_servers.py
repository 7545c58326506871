"""Gym servers that `turnpoint.toml` names: which of them are parts of the stack, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workers.named_servers import TAXI, settings_of
from workers.config.settings import load_settings
from workers.errors import SettingsError


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "worker_1"}, "worker_1 is the name of another process of the stack"),
        ({"name": "ray"}, "ray is the name of another process of the stack"),
        ({"url": "http://taxi.example"}, "a url with the port it listens on"),
        ({"command": [""]}, "at least 1 character"),
        ({"comand": ["python"]}, "no such key"),
    ],
)
def test_a_command_that_cannot_work_is_refused(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    """Break: take the name of Ray, and its loss is taken for that of a Gym server."""
    with pytest.raises(SettingsError, match=told):
        settings_of(tmp_path, {**TAXI, **change})


def test_two_servers_with_one_name_are_refused() -> None:
    """Break: take any list. Both would write into one folder of the snapshot."""
    servers = [
        {"name": "tools", "kind": "resource", "url": f"http://127.0.0.1:{port}"} for port in (1, 2)
    ]
    with pytest.raises(SettingsError, match="servers: two servers have the name tools"):
        load_settings(servers=servers)


def test_one_url_under_two_names_is_refused_with_both() -> None:
    """Break: compare the names alone. Every call to one of them would be answered by the other."""
    urls = {"tools": "http://127.0.0.1:1/", "counter": "http://127.0.0.1:1", "x": "http://x:1"}
    servers = [{"name": name, "kind": "resource", "url": url} for name, url in urls.items()]
    with pytest.raises(SettingsError, match="servers: one url under two names: tools and counter"):
        load_settings(servers=servers)
