"""A resource server that asks a judge inside verify: an auxiliary model server of the job.

The judge's call carries the identity of the verify that runs (`inner_identity`): it is admitted in
every phase, also while a save waits for this verify. Started with `--judge-url URL`.
"""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import TypeAdapter

from gym import resource
from gym.resource import Environment, Session, inner_identity, serve_environment, text_of, tool

Paragraphs = list[str]


class EssaySettings(resource.ServerSettings):
    """Flags of the server, with the base URL of a model server of role `auxiliary`."""

    judge_url: resource.BaseUrl


class Essay(Environment[Paragraphs]):
    """Collects paragraphs; the judge says whether they are good."""

    def __init__(self, settings: EssaySettings, transport: httpx.AsyncBaseTransport | None = None):
        self._http = resource.http_client(transport)
        self._judge = resource.Peer("judge", settings.judge_url, self._http)

    async def seed(self, row: dict[str, Any]) -> Paragraphs:
        return []

    @tool
    async def write_paragraph(self, session: Session[Paragraphs], text: str) -> dict[str, Any]:
        session.state.append(text)
        return {"paragraphs": len(session.state)}

    async def verify(
        self, session: Session[Paragraphs], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        question = "\n\n".join(["Is this a good essay? Answer yes or no.", *session.state])
        reply = await self._judge.call("v1/responses", {"input": question}, inner_identity())
        verdict = text_of(reply.object())
        return {"reward": float(verdict.lower().startswith("yes")), "verdict": verdict}

    def export_state(self, state: Paragraphs) -> bytes:
        return TypeAdapter(Paragraphs).dump_json(state)

    def import_state(self, data: bytes) -> Paragraphs:
        return TypeAdapter(Paragraphs).validate_json(data)

    async def aclose(self) -> None:
        await self._http.aclose()


if __name__ == "__main__":
    serve_environment(Essay, EssaySettings)
