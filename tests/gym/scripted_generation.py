"""The scripted policy behind the fake generation endpoint: any row, any environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl.policies.scripted import Script, completion
from tests.gym.fake_generation import FakeGeneration


@dataclass
class ScriptedGeneration(FakeGeneration):
    """Plays `script` instead of the counter's tool."""

    script: Script = field(default_factory=lambda: Script(turns=4, turns_spread=2))

    def _answer(self, rollout_id: str, index: int, body: dict[str, Any]) -> dict[str, Any]:
        return completion(self.script, body, rollout_id, index)
