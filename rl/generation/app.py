"""The generation endpoint: OpenAI-compatible HTTP whose tokens go to TransferQueue (section 3).

Guarantees, for a call that carries a model call id: its row (tokens, log-probabilities, the
response as answered) is readable in TransferQueue before it is answered; the answer holds
coordinates in place of tokens; calls with the same key join the one that runs, and are answered
from the row once it is there, so that one key is one generation as long as its row is kept;
another request under that key is refused. A caller that hangs up ends nothing. Calls without a
model call id are passed through, and nothing is staged.

Does not repeat a request to the policy: a policy that is down is a 503, and callers issue the
same call again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gym.http import http_client
from gym.protocol import (
    HEADER_PARENT_KEY,
    Identity,
    IdentityMismatch,
    InvalidRequest,
    RequestConflict,
    ServerFault,
    ServerUnreachable,
    StaleAttempt,
    TurnpointError,
    canonical_json,
    digest_of,
    staging_key,
)
from gym.single_flight import SingleFlight
from rl.data_plane.rows import StagingRow
from rl.errors import DataPlaneLost

if TYPE_CHECKING:  # importing it imports torch, for seconds
    from rl.data_plane.transfer_queue import DataPlane

PARTICIPANT = "Generation"
COORDINATES_FIELD = "turnpoint"
_PASSING = (408, 425, 429)
"""Refusals of the policy that pass: answered as 503, like its 5xx."""
_TOKEN_FIELDS = ("prompt_token_ids", "prompt_logprobs", "prompt_text", "token_ids", "logprobs")
"""Fields of a completion, and of its choices, that hold tokens (vLLM 0.32)."""

_log = logging.getLogger(__name__)


class PolicyRefusal(Exception):
    """A 4xx of the policy, handed on as it came (a prompt that is too long, ...)."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(f"HTTP {answer.status_code}")
        self.answer = answer


class Generation:
    """Answers model calls: from a row, by joining, or by asking the policy.

    Args:
        plane: TransferQueue, where rows are staged.
        incarnation: The only one served.
        policy_url: Base URL of the policy, ending in `/v1`.
        policy_model: Model name in requests to the policy, in place of the caller's.
        weight_version: Name, in the rows, of the weights they were sampled from.
        transport: Another transport than HTTP, for tests.
    """

    def __init__(
        self,
        plane: DataPlane,
        *,
        incarnation: int,
        policy_url: str,
        policy_model: str,
        weight_version: str,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._plane = plane
        self._incarnation = incarnation
        self._url = f"{policy_url.rstrip('/')}/chat/completions"
        self._model = policy_model
        self._weight_version = weight_version
        self._flights = SingleFlight[str]("this model call", participant=PARTICIPANT)
        self._http = http_client(transport)

    async def aclose(self) -> None:
        """Close the connections to the policy."""
        await self._http.aclose()

    async def staged(
        self, chat: dict[str, Any], identity: Identity, parent_key: str | None
    ) -> bytes:
        """Answer one model call of an agent.

        Args:
            chat: The request.
            identity: Of the call; with a model call id.
            parent_key: Staging key of the call before.

        Returns:
            The chat completion with its coordinates, as JSON.

        Raises:
            StaleAttempt: Another incarnation's call.
            RequestConflict: The key has another request.
            ServerUnreachable: The policy is down.
            PolicyRefusal: The policy refused the request for good.
        """
        self.admit(identity)
        call_id = identity.model_call_id
        assert call_id is not None
        key = staging_key(identity.incarnation, identity.capture_key, call_id)
        request_sha256 = digest_of(chat)

        async def logged() -> StagingRow:
            try:
                return await self._generate(key, chat, request_sha256, identity, parent_key)
            except Exception as error:  # logged here, as every caller may have hung up
                _log.warning(
                    "generation_failed",
                    extra={"event": "generation_failed", "key": key, "error": type(error).__name__},
                )
                raise

        row = await self._flights.run(key, request_sha256, logged, details={"key": key})
        answer = json.loads(row.response)
        answer[COORDINATES_FIELD] = row.coordinates(key).model_dump(mode="json")
        return canonical_json(answer)

    async def passed_through(self, chat: dict[str, Any], identity: Identity | None) -> bytes:
        """Answer a call without a model call id: the policy's answer as it is, nothing staged.

        Raises:
            StaleAttempt: Another incarnation's call.
            ServerUnreachable: The policy is down.
            PolicyRefusal: The policy refused the request for good.
        """
        if identity is not None:
            self.admit(identity)
        return (await self._ask(chat | {"model": self._model}, {})).content

    def admit(self, identity: Identity) -> None:
        """Refuse a call with wrong ids, or of another incarnation.

        Raises:
            StaleAttempt: Another incarnation's call.
            IdentityMismatch: It carries a request id beside the model call id.
        """
        if identity.incarnation != self._incarnation:
            raise StaleAttempt(f"this is incarnation {self._incarnation}", participant=PARTICIPANT)
        if identity.model_call_id is not None and identity.request_id is not None:
            raise IdentityMismatch(
                "a model call carries no request id beside its model call id",
                participant=PARTICIPANT,
            )

    async def _generate(
        self,
        key: str,
        chat: dict[str, Any],
        request_sha256: str,
        identity: Identity,
        parent_key: str | None,
    ) -> StagingRow:
        found = (await self._plane.get_staging([key])).get(key)
        if found is not None:
            if found.request_sha256 != request_sha256:
                raise RequestConflict(
                    "another request came under this key",
                    participant=PARTICIPANT,
                    details={"key": key},
                )
            return found
        own = {
            "model": self._model,
            "seed": seed_of(identity.rollout_id, identity.model_call_id or ""),
            "logprobs": True,
            "return_token_ids": True,
            "stream": False,
        }
        headers = identity.headers()
        wanted = ("x-turnpoint-rollout-id", "x-turnpoint-model-call-id")
        answer = await self._ask(chat | own, {name: headers[name] for name in wanted})
        row = _row_of(answer, request_sha256, self._weight_version, parent_key)
        await self._plane.put_staging(key, row)
        return row

    async def _ask(self, chat: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        try:
            answer = await self._http.post(self._url, json=chat, headers=headers)
        except httpx.TransportError as error:
            raise _down(type(error).__name__) from error
        if answer.is_server_error or answer.status_code in _PASSING:
            raise _down(f"HTTP {answer.status_code}")
        if not answer.is_success:
            raise PolicyRefusal(answer)
        return answer


def seed_of(rollout_id: str, call_id: str) -> int:
    """The sampling seed of a model call: the same in every run and incarnation; 31 bits."""
    digest = hashlib.sha256(f"{rollout_id}/{call_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def create_app(generation: Generation) -> FastAPI:
    """The endpoint's HTTP routes: `/v1/chat/completions` and `/health`."""
    app = FastAPI(title="Turnpoint generation endpoint", docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        chat = await _chat_of(request)
        identity = Identity.from_headers(request.headers)
        if identity is None or identity.model_call_id is None:
            content = await generation.passed_through(chat, identity)
        else:
            parent_key = request.headers.get(HEADER_PARENT_KEY)
            content = await generation.staged(chat, identity, parent_key)
        return Response(content, media_type="application/json")

    @app.exception_handler(TurnpointError)
    async def refused(_: Request, error: TurnpointError) -> Response:
        # A lost data plane ends the job, not the run: the caller waits for the restore.
        status = 503 if isinstance(error, DataPlaneLost) else error.status
        return JSONResponse(error.body(), status_code=status)

    @app.exception_handler(PolicyRefusal)
    async def handed_on(_: Request, refusal: PolicyRefusal) -> Response:
        answer = refusal.answer
        return Response(
            answer.content, answer.status_code, media_type=answer.headers.get("content-type")
        )

    return app


async def _chat_of(request: Request) -> dict[str, Any]:
    try:
        chat = await request.json()
    except ValueError:
        raise InvalidRequest("the body is no JSON", participant=PARTICIPANT) from None
    if not isinstance(chat, dict):
        raise InvalidRequest("the body is no JSON object", participant=PARTICIPANT)
    for name, allowed in (("stream", (None, False)), ("n", (None, 1))):
        if chat.get(name) not in allowed:
            raise InvalidRequest(
                f"`{name}` is not supported: one model call is one answer, given whole",
                participant=PARTICIPANT,
            )
    return chat


def _row_of(
    answer: httpx.Response, request_sha256: str, weight_version: str, parent_key: str | None
) -> StagingRow:
    try:
        completion = answer.json()
        choice = completion["choices"][0]
        row = StagingRow(
            prompt_ids=_ids(completion["prompt_token_ids"]),
            generation_ids=_ids(choice["token_ids"]),
            log_probs=[token["logprob"] for token in choice["logprobs"]["content"]],
            response=canonical_json(_without_tokens(completion)),
            request_sha256=request_sha256,
            weight_version=weight_version,
            parent_key=parent_key,
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ServerFault(
            f"the policy answered no token ids and log-probabilities ({type(error).__name__})",
            participant="policy",
        ) from None
    return row


def _ids(found: Any) -> list[int]:
    """Token ids as a row can hold them; any other value raises."""
    return array("i", found).tolist()


def _without_tokens(completion: Mapping[str, Any]) -> dict[str, Any]:
    bare = {name: value for name, value in completion.items() if name not in _TOKEN_FIELDS}
    bare["choices"] = [
        {name: value for name, value in choice.items() if name not in _TOKEN_FIELDS}
        for choice in completion["choices"]
    ]
    return bare


def _down(reason: str) -> ServerUnreachable:
    return ServerUnreachable(f"the policy does not answer ({reason})", participant="policy")
