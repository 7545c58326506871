"""The example that asks a judge inside verify."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from examples.essay import Essay, EssaySettings
from tests.gym.resource_server import served


def essay(root: Path, transport: httpx.AsyncBaseTransport) -> Essay:
    settings = EssaySettings(
        name="essay",
        port=21_999,
        snapshot_root=root,
        control_token=SecretStr("token"),
        judge_url="http://judge",
    )
    return Essay(settings, transport)


def verdict(text: str) -> httpx.Response:
    part = {"type": "output_text", "text": text}
    message = {"type": "message", "role": "assistant", "content": [part]}
    return httpx.Response(200, json={"output": [message]})


@pytest.mark.parametrize(("text", "reward"), [("Yes, it is.", 1.0), ("It is not.", 0.0)])
async def test_the_judge_reads_the_essay_and_is_asked_until_it_answers(
    text: str, reward: float, tmp_path: Path
) -> None:
    """Break: gym/peer.py: let `Peer.call` POST once."""
    asked: list[httpx.Request] = []
    answers = [httpx.ConnectError("down"), httpx.Response(502, text="gateway"), verdict(text)]

    def judge(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    environment = essay(tmp_path, httpx.MockTransport(judge))
    async with served(environment, tmp_path, name="essay") as server:
        await server.seed()
        for number, paragraph in enumerate(("One.", "Two.")):
            body = {"text": paragraph}
            written = await server.call("/write_paragraph", body, "call-0", number)
            assert written.json() == {"paragraphs": number + 1}
        verified = await server.call("/verify", {"response": {}}, "verify")
        assert (verified.json()["reward"], verified.json()["verdict"]) == (reward, text)
    assert [request.headers["x-turnpoint-request-id"] for request in asked] == [
        "p0_g0/verify/0"
    ] * 3
    assert json.loads(asked[0].content)["input"].endswith("yes or no.\n\nOne.\n\nTwo.")
    await environment.aclose()


def test_a_saved_page_is_read_back_and_others_are_refused(tmp_path: Path) -> None:
    environment = essay(tmp_path, httpx.MockTransport(lambda _: httpx.Response(500)))
    page = ["One.", "zwölf"]
    assert environment.import_state(environment.export_state(page)) == page
    for bad in (b"{}", b"[1]", b"x"):
        with pytest.raises(ValueError):
            environment.import_state(bad)
