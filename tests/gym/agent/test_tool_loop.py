"""The tool-calling loop: the outputs of tools that the model is shown, and the loop's end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import fleet
from tests.gym.meddling import Meddling, outputs


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda: httpx.Response(404, json={"detail": "Not Found"}), '{"detail":"Not Found"}'),
        (lambda: httpx.Response(500, text="ValueError('x')"), "ValueError('x')"),
        (lambda: httpx.Response(503, json={"detail": "no index"}), '{"detail":"no index"}'),
        (
            lambda: httpx.Response(409, json={"code": "checkpoint_parked", "why": "mine"}),
            '{"code":"checkpoint_parked","why":"mine"}',
        ),
    ],
)
async def test_what_an_environment_answers_is_shown_to_the_model(
    tmp_path: Path, answer: Callable[[], httpx.Response], shown: str
) -> None:
    """Break: gym/peer.py: take each 503 for a gateway's; a receipt answers it for ever."""
    meddling = Meddling()
    meddling.instead["increment_counter"] = [answer()]
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        result, _ = await servers.run("p0_g0")
        assert outputs(result)[0] == shown
        assert len(meddling.with_id("p0_g0/call-0/0")) == 1


async def test_arguments_that_the_tool_refuses_are_shown_to_the_model(tmp_path: Path) -> None:
    generation = FakeGeneration(turns=4)
    odd = ['{"count": "many"}', "{", "true"]
    plain = generation._answer

    def answer(rollout_id: str, index: int, body: dict[str, Any]) -> dict[str, Any]:
        made = plain(rollout_id, index, body)
        if index < 3:
            made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = odd[index]
        return made

    generation._answer = answer  # type: ignore[method-assign]
    async with fleet(tmp_path, generation) as servers:
        await servers.join()
        result, _ = await servers.run("p0_g0")
        shown = [json.loads(text) for text in outputs(result)]
        assert shown[0]["code"] == shown[2]["code"] == "invalid_request"
        assert "Invalid tool call arguments" in shown[1]["error"]
        assert result["final_count"] == 3


async def test_max_steps_ends_the_loop_after_its_tools(tmp_path: Path) -> None:
    async with fleet(tmp_path, FakeGeneration(), agent={"max_steps": 2}) as servers:
        await servers.join()
        result, headers = await servers.run("p0_g0")
        assert result["final_count"] == 3 + 1 + 2
        assert headers["x-turnpoint-last-model-call-id"] == "call-1"
