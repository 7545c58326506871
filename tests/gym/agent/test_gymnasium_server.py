"""Settings of a gymnasium-style agent server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym.agent.gymnasium_server import GymnasiumAgentSettings
from tests.gym.gymnasium_fleet import (
    AGENT,
    ENVIRONMENT,
)


@pytest.mark.parametrize(
    "fields",
    [{"resource": {"a": "http://a", "b": "http://b"}}, {"tool": {"act": ENVIRONMENT}}],
)
def test_a_gymnasium_agent_plays_one_environment(tmp_path: Path, fields: dict[str, Any]) -> None:
    given = {"resource": {ENVIRONMENT: "http://e"}, **fields}
    with pytest.raises(ValueError, match="one environment"):
        GymnasiumAgentSettings(
            name=AGENT, port=21_999, snapshot_root=tmp_path, model_url="http://m", **given
        )
