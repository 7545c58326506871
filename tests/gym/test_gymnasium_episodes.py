"""Episodes of the gymnasium-style agent and server that no row of NeMo Gym shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from fastapi.responses import JSONResponse

from gym.protocol import Identity
from tests.gym.scripted_generation import ScriptedGeneration
from tests.gym.test_gymnasium_agent import ENVIRONMENT, playing, turns

ROW: dict[str, Any] = {"responses_create_params": {"input": "Play, by <action></action>."}}


async def test_each_episode_of_a_caller_without_identity_meets_chances_of_its_own(
    tmp_path: Path,
) -> None:
    """Break: gym/environments/gymnasium_server.py: take the seed from `session.rollout_id`."""
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        async with httpx.AsyncClient(base_url=servers.urls[ENVIRONMENT], trust_env=False) as http:
            resets = [(await http.post("/reset", json=ROW)).json() for _ in range(8)]
    assert len({reset["observation"] for reset in resets}) > 3


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
