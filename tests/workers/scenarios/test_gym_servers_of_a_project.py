"""A Gym server of `turnpoint.toml` is started, answers, and is started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gym.protocol import Phase
from tests.ports import free_port
from tests.workers.named_servers import TAXI, settings_of
from workers.config.settings import load_settings
from workers.job.status import gym_capabilities
from workers.stack.stack import Stack


@pytest.mark.real
def test_a_server_with_a_command_starts_answers_and_is_started_again(tmp_path: Path) -> None:
    """Break: do not tell it its name; it then cannot start."""
    url = f"http://127.0.0.1:{free_port()}"
    dice = {**TAXI, "name": "dice", "url": url, "command": ["python", "-m", "examples.dice"]}
    root = str(Path(__file__).parents[3])
    stack = Stack(settings_of(tmp_path, {**dice, "folder": root}, port_base=26_450))
    try:
        stack.up(only={"dice"})
        assert stack.status() == {"dice": True}
        stack.kill("dice")
        assert "dice" in stack.gone()
        stack.restart("dice", expect_restore=True)
        running = load_settings(state_dir=tmp_path)
        answers, _ = asyncio.run(gym_capabilities(running, running.job_config()))
        found = answers["dice"]
        assert found is not None and found.phase is Phase.AWAITING_RESTORE
    finally:
        stack.down(kill=True)
    assert stack.record() is not None and stack.status() == {}
