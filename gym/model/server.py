"""The policy model server: NeMo Gym's model routes in front of the generation endpoint.

`POST /v1/responses` and `POST /v1/chat/completions`, in NeMo Gym's shapes; the ledger's
manifest on `GET /training-token-capture/control/rollouts/{capture_key}/manifest` (bearer).
Guarantees: see `gym.model.part`. A server of role `auxiliary` (a judge, a simulated user) is the
same without ledger, and never closes.

Started as `python -m gym.model.server --name policy_model --port P --generation-url URL ...`.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from gym.checkpoint.phases import Phases
from gym.formats.json_body import json_object
from gym.formats.responses import chat_request, response_of, with_extra
from gym.model.generation_client import Completion, GenerationEndpoint
from gym.model.part import ModelPart
from gym.protocol import Identity, InvalidRequest, Manifest, Role
from gym.protocol.identity import HEADER_COMMITTED_CALL
from gym.protocol.records import BaseUrl
from gym.server.anonymous_calls import caller_of, while_connected
from gym.server.app import close_with, create_app
from gym.server.serve import serve_configured
from gym.server.settings import ServerSettings

CAPTURE_PATH = "/training-token-capture"


class ModelServerSettings(ServerSettings):
    """Settings of a model server."""

    generation_url: BaseUrl
    """Base URL of the generation endpoint (or of any OpenAI-compatible server), up to `/v1`."""
    role: Role = Role.POLICY
    """`policy` keeps the ledger and takes part in checkpoints; `auxiliary` never closes."""
    model: str | None = None
    """Model name sent on; None keeps the caller's."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields merged into each chat request: sampling that is configuration, not the row's."""


def create_model_app(
    settings: ModelServerSettings, endpoint: GenerationEndpoint | None = None
) -> FastAPI:
    """The application of one model server.

    Args:
        settings: Its settings.
        endpoint: Source of completions; by default `settings.generation_url`.
    """
    endpoint = endpoint or GenerationEndpoint(settings.generation_url, participant=settings.name)
    phases = Phases(
        settings.name,
        expect_restore=settings.expect_restore,
        never_closes=settings.role is Role.AUXILIARY,
    )
    part = ModelPart(phases, endpoint, settings.role)
    app = create_app(phases, part, settings, guarded=(CAPTURE_PATH,))
    close_with(app, part.aclose)

    async def complete(
        request: Request, identity: Identity | None, chat: dict[str, Any]
    ) -> tuple[Completion, dict[str, str]]:
        """The completion, and the header that says whether the call has a ledger row."""
        work = part.call(identity, chat)
        completion = await (work if identity else while_connected(request, work))
        committed = identity.model_call_id if identity and completion.coordinates else None
        return completion, {HEADER_COMMITTED_CALL: committed} if committed else {}

    @app.post("/v1/responses")
    async def responses(request: Request) -> JSONResponse:
        identity = await caller_of(phases, request, "model_call")
        body = await model_request(request)
        chat = chat_request(body, model=settings.model, extra=settings.extra_body)
        completion, headers = await complete(request, identity, chat)
        answer = response_of(completion.chat, body, name=_item_name(identity))
        return JSONResponse(answer, headers=headers)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> JSONResponse:
        identity = await caller_of(phases, request, "model_call")
        body = await model_request(request)
        if settings.model is not None:
            body["model"] = settings.model
        chat = with_extra(body, settings.extra_body)
        completion, headers = await complete(request, identity, chat)
        return JSONResponse(completion.chat, headers=headers)

    @app.get(CAPTURE_PATH + "/control/rollouts/{capture_key}/manifest")
    async def manifest(capture_key: str) -> Manifest:
        return part.ledger.manifest(capture_key)

    return app


def _item_name(identity: Identity | None) -> str | None:
    """Stem of the response's ids: the same for every run of a rollout."""
    if identity is None or identity.model_call_id is None:
        return None
    return f"{identity.rollout_id}_{identity.model_call_id}"


async def model_request(request: Request) -> dict[str, Any]:
    """The body of a model call.

    Raises:
        InvalidRequest: It is not a JSON object, or asks for a stream.
    """
    body = await json_object(request)
    if body.get("stream"):
        raise InvalidRequest("streaming is not served here: stream must be false")
    return body


if __name__ == "__main__":
    serve_configured(create_model_app, ModelServerSettings)
