"""A generation endpoint without RL: scripted answers, coordinates, and places to make it wait."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from gym.protocol import (
    HEADER_PARENT_KEY,
    Identity,
    RequestConflict,
    StagingCoordinates,
    digest_of,
    staging_key,
)


@dataclass
class FakeGeneration:
    """Each rollout increments `turns - 1` times (call k by k + 1), then says `done`."""

    turns: int = 6
    delay_s: float = 0.0
    generated: list[str] = field(default_factory=list)
    """Keys of the rows it made, in order."""
    asked: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Every request that came: body and headers."""
    failing: int = 0
    """So many further requests are answered 503."""
    rows: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    held_from: int | None = None
    """Calls of this index and later wait until it is None again."""
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def hold_from(self, index: int | None) -> None:
        async with self._moved:
            self.held_from = index
            self._moved.notify_all()

    async def until_waiting(self, call: str, count: int = 1) -> None:
        """Return when `count` rollouts wait here with this call."""
        async with self._moved:
            await self._moved.wait_for(
                lambda: (
                    sum(h.get("x-turnpoint-model-call-id") == call for _, h in self.asked) >= count
                )
            )

    def calls_of(self, rollout_id: str) -> list[str]:
        """`capture_key/call` of the rows made for a rollout."""
        return [key.partition("/")[2] for key in self.generated if f"/{rollout_id}" in key]

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> JSONResponse:
            body = json.loads(await request.body())
            async with self._moved:
                self.asked.append((body, dict(request.headers)))
                self._moved.notify_all()
            if self.failing > 0:
                self.failing -= 1
                return JSONResponse({"error": "engine died"}, status_code=503)
            identity = Identity.from_headers(request.headers)
            if identity is None:  # it plays its turns as well, told by the conversation
                await asyncio.sleep(self.delay_s)
                answered = sum(message["role"] == "assistant" for message in body["messages"])
                return JSONResponse(self._answer("nobody", answered, body))
            if identity.model_call_id is None:
                return JSONResponse(self._answer("nobody", 10**6, body))
            return await self._staged(identity, body, request.headers.get(HEADER_PARENT_KEY))

        return app

    async def _staged(self, identity: Identity, body: Any, parent: str | None) -> JSONResponse:
        assert identity.model_call_id is not None
        index = int(identity.model_call_id.removeprefix("call-"))
        await asyncio.sleep(self.delay_s)
        async with self._moved:
            await self._moved.wait_for(lambda: self.held_from is None or index < self.held_from)
        key = staging_key(identity.incarnation, identity.capture_key, identity.model_call_id)
        if key not in self.rows:
            answer = self._answer(identity.rollout_id, index, body)
            coordinates = StagingCoordinates(
                key=key,
                prompt_length=len(body["messages"]),
                generation_length=3,
                sha256=digest_of(answer),
                weight_version="v0",
                parent_key=parent,
            )
            self.generated.append(key)
            self.rows[key] = (
                digest_of(body),
                answer | {"turnpoint": coordinates.model_dump(mode="json")},
            )
        request_sha256, stored = self.rows[key]
        if request_sha256 != digest_of(body):
            error = RequestConflict("another request under this key")
            return JSONResponse(error.body(), status_code=error.status)
        return JSONResponse(stored)

    def _answer(self, rollout_id: str, index: int, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if index < self.turns - 1:
            message["tool_calls"] = [
                {
                    "id": f"t-{rollout_id}-{index}",
                    "type": "function",
                    "function": {
                        "name": "increment_counter",
                        "arguments": json.dumps({"count": index + 1}),
                    },
                }
            ]
        else:
            message["content"] = "done \u2713"
        return {
            "id": f"chatcmpl-{rollout_id}-{index}",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model") or "tiny",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
        }
