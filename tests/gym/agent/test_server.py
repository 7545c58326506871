"""The agent server: rows that it refuses, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym.agent.server import AgentServerSettings
from gym.protocol import (
    TurnpointError,
)
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, ROW, fleet


async def test_bad_rows_are_refused_and_begin_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path, FakeGeneration()) as servers:
        await servers.join()
        for row in ({"x": 1}, {"responses_create_params": {"input": 5}}):
            with pytest.raises(TurnpointError, match="invalid_request"):
                await servers.run("p0_g0", row=row)
        assert (await servers.run("p0_g0", row=ROW))[0]["final_count"] == 18


def settings(root: Path, **fields: Any) -> AgentServerSettings:
    common = {"name": AGENT, "port": 21_999, "snapshot_root": root, "model_url": "http://m"}
    return AgentServerSettings(**common, **fields)


def test_servers_and_tools_are_pairs_in_their_order(tmp_path: Path) -> None:
    given = settings(tmp_path, resource=["b=http://b,a=http://a"], tool="roll=a")
    assert list(given.resource.items()) == [("b", "http://b"), ("a", "http://a")]
    assert given.tool == {"roll": "a"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"resource": {}}, "at least one resource server"),
        ({"resource": "a"}, "expected NAME=VALUE"),
        ({"resource": "a=ftp://a"}, "not the URL of a server"),
        ({"resource": "a=http://a", "tool": "roll=b"}, "no such resource server: b"),
    ],
)
def test_settings_that_name_no_server_are_refused(
    fields: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=error):
        settings(tmp_path, **fields)
