"""The gymnasium loop: the sum of rewards, answers that are none, and episodes that are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from fastapi.responses import JSONResponse

from gym.agent.gymnasium_server import GymnasiumAgentSettings, create_gymnasium_agent_app
from gym.protocol import (
    Identity,
    ServerFault,
    StatusRequest,
)
from tests.gym.gymnasium_fleet import (
    AGENT,
    CART_POLE,
    ENVIRONMENT,
    playing,
    rows_of,
    said,
    turns,
    undisturbed,
)
from tests.gym.scripted_generation import ScriptedGeneration

ROW: dict[str, Any] = {"responses_create_params": {"input": "Play, by <action></action>."}}


class ShortContext(ScriptedGeneration):
    """Refuses the third prompt of each rollout, and every longer one, as vLLM does."""

    async def _staged(self, identity: Identity, body: Any, parent: str | None) -> JSONResponse:
        if identity.model_call_id in ("call-0", "call-1"):
            return await super()._staged(identity, body, parent)
        error = {"error": {"message": "This model's maximum context length is 64 tokens."}}
        return JSONResponse(error, status_code=400)


async def test_an_episode_that_outgrows_the_models_context_is_truncated(tmp_path: Path) -> None:
    """Break: gym/agent/gymnasium_loop.py: go on after it.

    The next call follows none, the run fails.
    """
    async with playing(tmp_path, ShortContext()) as servers:
        await servers.join()
        result, headers = await servers.run("p0_g0", row=ROW | {"environment": "CliffWalking-v1"})
        assert (result["terminated"], result["truncated"]) == (False, True)
        assert len(turns(result)) == 2
        assert result["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert headers["x-turnpoint-last-model-call-id"] == "call-1"


async def test_the_reward_is_the_sum_over_the_steps(tmp_path: Path) -> None:
    """Break: assign the step's reward instead of adding it."""
    row = rows_of("cliff_walking")[1]
    results = await undisturbed(tmp_path, {"p0_g0": row}, max_steps=7)
    result = results["p0_g0"]
    assert (result["terminated"], result["truncated"]) == (False, True)
    falls = (-result["reward"] - 7) / 99
    assert result["reward"] <= -7
    assert falls == int(falls)
    assert json.loads(json.dumps(result)) == result
    assert len(result["response"]["output"]) == 7 * 2


async def test_a_step_that_is_no_step_fails_the_run(tmp_path: Path) -> None:
    """A foreign server's answer is checked before anything of it is taken over."""
    settings = GymnasiumAgentSettings(
        name=AGENT,
        port=21_999,
        snapshot_root=tmp_path,
        control_token="t",
        model_url="http://model",
        resource={ENVIRONMENT: "http://environment"},
    )
    answers = {
        "/reset": {"observation": "go", "info": {"supports_step_idempotency": True}},
        "/v1/responses": said("<action>0</action>") | {"usage": {"total_tokens": 1}},
        "/step": {"observation": None, "reward": "high"},
    }
    asked: dict[str, Any] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        asked[request.url.path] = json.loads(request.content)
        return httpx.Response(200, json=answers[request.url.path])

    app = create_gymnasium_agent_app(settings, httpx.MockTransport(answer))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
        token = {"authorization": "Bearer t"}
        join = {"job_id": "j", "incarnation": 1}
        joined = await http.post("/checkpoint/v1/join", json=join, headers=token)
        assert joined.status_code == 200
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
        failed = await http.post("/run", json=CART_POLE, headers=identity.headers())
        assert (failed.status_code, failed.json()["code"]) == (ServerFault.status, "server_fault")
        assert "reward" in failed.json()["message"]
        assert "high" not in failed.text
        assert asked["/step"]["_ng_step_request_id"] == "p0_g0/call-0/0"
        status = StatusRequest(incarnation=1, instance_id=joined.json()["instance_id"])
        seen = await http.get("/checkpoint/v1/status", params=status.model_dump(), headers=token)
        assert seen.json()["counts"]["running"] == 0
