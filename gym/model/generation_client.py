"""The model server's side of the RL-side generation endpoint.

Guarantees: a call is issued again, unchanged, with back-off, for as long as the endpoint is
down or answers 5xx or a refusal that passes; it ends with the completion and, where the call
was staged, its coordinates, or with a typed error. The endpoint owns the staging keys, so a
call issued again has one effect (design section 3). Nothing of a body enters a log or an error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from gym.formats.responses import cut_short
from gym.http import http_client, json_or_none, send
from gym.protocol import (
    HEADER_PARENT_KEY,
    Identity,
    InvalidRequest,
    ProtocolError,
    ServerFault,
    ServerUnreachable,
    StagingCoordinates,
    error_from_body,
)
from gym.retry import TryAgain, retry

log = logging.getLogger("turnpoint.gym")
FIELD = "turnpoint"
"""Top-level field of a completion that holds its coordinates in place of the tokens."""

_PASSING = (408, 425, 429)
"""Refusals that pass by themselves, like a 5xx."""
_TOO_LONG = ("context length", "maximum model length")
"""Words of vLLM's 400 for a prompt that does not fit."""


@dataclass(frozen=True)
class Completion:
    """One answered model call."""

    chat: dict[str, Any]
    """The chat completion, without the coordinates."""
    coordinates: StagingCoordinates | None
    """None where nothing was staged: no model call id, or a prompt that does not fit."""


class GenerationEndpoint:
    """One job's generation endpoint, by URL.

    Args:
        url: Base URL that ends in `/v1`.
        participant: Name of the model server, for errors.
        transport: Another transport than HTTP, for tests.
    """

    def __init__(
        self, url: str, *, participant: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._participant = participant
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._http = http_client(transport)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def complete(
        self, chat: dict[str, Any], identity: Identity | None, parent_key: str | None
    ) -> Completion:
        """Have one chat completion generated.

        Args:
            chat: The request.
            identity: The caller's; None for callers without identity.
            parent_key: Staging key of the call before.

        Raises:
            ProtocolError: The endpoint refused for good (another request under this key, ...).
            ServerFault: It answered something that is not of this protocol.
        """
        headers = identity.headers() if identity else {}
        if parent_key is not None:
            headers[HEADER_PARENT_KEY] = parent_key
        call_id = identity.model_call_id if identity else None

        async def once() -> Completion:
            answer = await send(
                self._http, "POST", self._url, participant=self._participant, json=chat,
                headers=headers,
            )  # fmt: skip
            if answer.is_success:
                return self._completion(answer, staged=call_id is not None)
            if _prompt_too_long(answer):
                return Completion(cut_short(chat.get("model")), None)
            raise self._refusal(answer)

        def on_retry(tries: int, error: BaseException) -> None:
            if tries.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... time
                ids = {"rollout_id": identity and identity.rollout_id, "model_call_id": call_id}
                event = {"event": "generation_retry", "reason": str(error), "tries": tries}
                log.warning("generation_retry", extra=event | ids)

        return await retry(once, on=(TryAgain, ServerUnreachable), on_retry=on_retry)

    def _completion(self, answer: httpx.Response, *, staged: bool) -> Completion:
        body = json_or_none(answer)
        if not isinstance(body, dict):
            raise self._fault("the generation endpoint answered no JSON object")
        found = body.pop(FIELD, None)
        if not staged:
            return Completion(body, None)
        try:
            return Completion(body, StagingCoordinates.model_validate(found))
        except ValidationError:
            raise self._fault("the generation endpoint answered no coordinates") from None

    def _refusal(self, answer: httpx.Response) -> Exception:
        """The error to end the call with, or `TryAgain` if the same request may pass later."""
        body = json_or_none(answer)
        error = error_from_body(answer.status_code, body, participant=self._participant)
        passes = answer.is_server_error or answer.status_code in _PASSING
        if isinstance(error, ProtocolError):
            passes = error.retryable
        elif isinstance(body, dict) and body.get("code") == ServerFault.code:
            # The endpoint itself finds the policy's answers unusable: no repeat will help.
            return self._fault("the generation endpoint cannot use the policy's answers")
        elif not passes:
            error = InvalidRequest(
                f"the generation endpoint refused the request with HTTP {answer.status_code}",
                participant=self._participant,
            )
        return TryAgain(f"HTTP {answer.status_code}") if passes else error

    def _fault(self, message: str) -> ServerFault:
        return ServerFault(message, participant=self._participant)


def _prompt_too_long(answer: httpx.Response) -> bool:
    text = answer.text.lower() if answer.status_code == 400 else ""
    return any(words in text for words in _TOO_LONG)
