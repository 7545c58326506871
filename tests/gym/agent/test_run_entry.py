"""A run that has failed: its error is kept, saved and restored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.protocol import (
    Identity,
    ServerFault,
    SessionLost,
    SessionUncertain,
    TurnpointError,
    canonical_json,
    digest_of,
)
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import AGENT, COUNTER, ROW, fleet
from tests.gym.meddling import Meddling, typed
from tests.gym.rollouts import files_of


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("increment_counter", SessionUncertain("the last mutation did not end")),
        ("verify", SessionLost("no such session")),
        ("responses", ServerFault("no coordinates")),
    ],
)
async def test_a_typed_error_fails_the_run_and_the_next_run_starts_over(
    tmp_path: Path, path: str, error: TurnpointError
) -> None:
    meddling, generation = Meddling(), FakeGeneration()
    meddling.instead[path] = [typed(error)]
    async with fleet(tmp_path, generation, agent_transport=meddling) as servers:
        await servers.join()
        for _ in range(2):  # kept, so that a caller that comes again hears the same
            with pytest.raises(type(error)):
                await servers.run("p0_g0")
        assert [answer.ready for answer in await servers.prepare_all()] == [True] * 3
        assert (await servers.status(AGENT)).counts.parked == 1
        answers = await servers.commit_all()
        lines = answers[AGENT].continuations
        assert [line.resource_state_revisions for line in lines] == [{COUNTER: -1}]
        await servers.resume_all()
        result, _ = await servers.run("p0_g0", 1)
        assert result["final_count"] == 18
        assert generation.calls_of("p0_g0")[-6:] == [f"p0_g0-a1/call-{k}" for k in range(6)]
    async with fleet(tmp_path, FakeGeneration(), expect_restore=True) as restored:
        await restored.join(2)
        await restored.restore_all(files_of(answers))
        await restored.resume_all("r1")
        with pytest.raises(type(error)):
            await restored.run("p0_g0", 1)
        result, _ = await restored.run("p0_g0", 2)
        assert result["final_count"] == 18


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("responses", '{"output": "s3cret"}'),
        ("responses", "[]"),
        ("verify", '{"reward": NaN, "x": "s3cret"}'),
        ("verify", '{"reward": 1, "x": "s3cret \\ud800"}'),
        ("verify", '"s3cret"'),
        ("seed_session", '{"detail": "s3cret"}'),
    ],
)
async def test_an_answer_of_the_wrong_shape_fails_the_run_without_quoting_it(
    tmp_path: Path, path: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    meddling = Meddling()
    status = 400 if path == "seed_session" else 200
    meddling.instead[path] = [httpx.Response(status, text=text)]
    async with fleet(tmp_path, FakeGeneration(), agent_transport=meddling) as servers:
        await servers.join()
        with pytest.raises(ServerFault) as caught:
            await servers.run("p0_g0")
        assert "s3cret" not in str(caught.value) + caplog.text


async def test_a_result_is_serialised_once_and_answered_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is of the answered bytes. Break: serialise in `/run` instead of at the end."""
    made: list[bytes] = []

    def counted(value: Any) -> bytes:
        made.append(canonical_json(value))
        return made[-1]

    monkeypatch.setattr("gym.agent.run_entry.canonical_json", counted)
    async with fleet(tmp_path, FakeGeneration(turns=2)) as servers:
        await servers.join()
        identity = Identity(incarnation=1, rollout_id="p0_g0", attempt=0)
        answers = [
            await servers.client.run(servers.urls[AGENT], AGENT, identity, ROW) for _ in range(3)
        ]
    assert [body for body, _ in answers] == made * 3
    digest = hashlib.sha256(made[0]).hexdigest()
    assert {headers["x-turnpoint-result-digest"] for _, headers in answers} == {digest}
    assert digest == digest_of(json.loads(made[0]))
