"""A resource server that asks a judge inside verify: an auxiliary model server of the job.

The judge's call carries the identity of the verify that runs (`inner_identity`), so it is an
inner call: admitted in every phase, never in the ledger. A save that begins while the judge
thinks waits for the verify, and the judge answers it: nothing deadlocks.

Run it as `python -m examples.essay --name essay --port P --judge-url URL ...`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from gym.agent.peer import Peer, http_client
from gym.backoff import Backoff
from gym.formats.responses import text_of
from gym.protocol import ServerUnreachable
from gym.protocol.records import BaseUrl
from gym.resource.server import ResourceServer, Tool, create_resource_app, inner_identity
from gym.resource.session import Session
from gym.server.app import close_with
from gym.server.serve import serve
from gym.server.settings import ServerSettings, settings_from_command_line


class EssaySettings(ServerSettings):
    """What the server is told besides."""

    judge_url: BaseUrl
    """Base URL of the judge, a model server of role `auxiliary`."""


class _Paragraph(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)
    text: str


class Essay(ResourceServer[list[str]]):
    """Collects paragraphs; the judge says whether they are good.

    Args:
        judge: The judge's server.
    """

    def __init__(self, judge: Peer) -> None:
        """Call nobody yet."""
        self._judge = judge

    async def seed(self, row: dict[str, Any]) -> list[str]:
        """An empty page."""
        return []

    def tools(self) -> Mapping[str, Tool[list[str]]]:
        """The one tool."""
        return {"write_paragraph": Tool(_Paragraph, self._write)}

    async def _write(self, session: Session[list[str]], arguments: _Paragraph) -> dict[str, Any]:
        assert session.state is not None
        session.state.append(arguments.text)
        return {"paragraphs": len(session.state)}

    async def verify(
        self, session: Session[list[str]], row: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """Reward 1 if the judge's answer begins with "yes"."""
        assert session.state is not None
        essay = "\n\n".join(session.state)
        verdict = await self._ask(f"Is this a good essay? Answer yes or no.\n\n{essay}")
        return {"reward": float(verdict.lower().startswith("yes")), "verdict": verdict}

    async def _ask(self, question: str) -> str:
        """Ask until the judge answers: it may be started again meanwhile."""
        body = {"input": [{"role": "user", "content": question}]}
        identity = inner_identity()
        backoff = Backoff()
        while True:
            try:
                reply = await self._judge.post("v1/responses", body, identity, {})
                if (error := reply.error) is None:
                    return text_of(reply.object())
                if not error.retryable:
                    raise error
            except ServerUnreachable:
                pass
            await asyncio.sleep(backoff.next_s())

    def export_state(self, state: list[str]) -> bytes:
        """The paragraphs as JSON."""
        return json.dumps(state).encode()

    def import_state(self, data: bytes) -> list[str]:
        """The paragraphs behind their JSON."""
        state = json.loads(data)
        if not isinstance(state, list) or not all(isinstance(text, str) for text in state):
            raise ValueError("not a list of paragraphs")
        return state


def create_essay_app(
    settings: EssaySettings, transport: httpx.AsyncBaseTransport | None = None
) -> FastAPI:
    """The application.

    Args:
        settings: What it is told.
        transport: How it reaches the judge, instead of HTTP, for tests.
    """
    http = http_client(transport)
    app = create_resource_app(Essay(Peer("judge", settings.judge_url, http)), settings)
    close_with(app, http.aclose)
    return app


def main() -> None:
    """Serve until stopped."""
    settings = settings_from_command_line(EssaySettings)
    serve(create_essay_app(settings), settings)


if __name__ == "__main__":
    main()
