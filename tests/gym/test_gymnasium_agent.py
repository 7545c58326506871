"""The gymnasium-style agent and its resource server together, undisturbed, saved and restored."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.agent.gymnasium_server import GymnasiumAgentSettings, create_gymnasium_agent_app
from gym.environments.gymnasium_server import Gymnasium, GymnasiumServerSettings
from gym.protocol import (
    DiscardRequest,
    Identity,
    Kind,
    Mode,
    Phase,
    ServerFault,
    StatusRequest,
    TurnpointError,
    UnsupportedSchema,
    digest_of,
)
from gym.resource import environment_app
from tests.gym.fake_generation import FakeGeneration
from tests.gym.fleet import MODEL, Fleet, fleet_of
from tests.gym.scripted_generation import ScriptedGeneration

pytestmark = pytest.mark.real

AGENT, ENVIRONMENT = "gymnasium_agent", "gymnasium"
EXAMPLES = Path(__file__).parents[2] / "examples" / "gymnasium"
BLACKJACK = "resources_servers/blackjack/data/example.jsonl"


def rows_of(name: str) -> list[dict[str, Any]]:
    """Rows of an example file, or NeMo Gym's own blackjack rows."""
    path = EXAMPLES / f"{name}.jsonl"
    if name == "blackjack":
        path = Path(str(importlib.metadata.distribution("nemo-gym").locate_file(BLACKJACK)))
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


NAMES = ("blackjack", "cliff_walking", "frozen_lake", "taxi")
MIXED = {f"p{n}_g{k}": rows_of(name)[k] for n, name in enumerate(NAMES) for k in range(5)}
"""Twenty rollouts, five of each environment."""


@asynccontextmanager
async def playing(
    root: Path,
    generation: FakeGeneration,
    *environments: str,
    expect_restore: bool = False,
    max_steps: int = 12,
) -> AsyncIterator[Fleet]:
    """A gymnasium agent and server; nothing has joined yet."""
    given = {"environments": environments} if environments else {}

    def agent(common: dict[str, Any], urls: Any) -> Any:
        resource = {ENVIRONMENT: urls[ENVIRONMENT]}
        return create_gymnasium_agent_app(
            GymnasiumAgentSettings(
                **common, model_url=urls[MODEL], resource=resource, max_steps=max_steps
            )
        )

    def server(common: dict[str, Any], urls: Any) -> Any:
        settings = GymnasiumServerSettings(**common, **given)
        return environment_app(Gymnasium(settings), settings)

    servers = {AGENT: (Kind.AGENT, agent), ENVIRONMENT: (Kind.RESOURCE, server)}
    async with fleet_of(root, generation, servers, expect_restore=expect_restore) as made:
        yield made


async def parked(servers: Fleet, call: int, rows: dict[str, Any]) -> list[asyncio.Task[Any]]:
    """Start rollouts and prepare everything while those that are still going wait for a call.

    Results of rollouts that end before are kept by the agent, so they are not counted here.
    """
    generation = servers.generation
    await generation.hold_from(call)
    runs = [asyncio.create_task(servers.run(name, row=row)) for name, row in rows.items()]
    await generation.until_waiting(f"call-{call}", len(rows))
    closing = asyncio.create_task(servers.prepare(MODEL))
    async with asyncio.timeout(10):
        while (await servers.status(MODEL)).phase is not Phase.PREPARING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await generation.hold_from(None)
    assert (await closing).ready
    return runs


def strip(result: dict[str, Any]) -> str:
    return json.dumps(result, sort_keys=True)


async def undisturbed(root: Path, rows: dict[str, Any], **options: Any) -> dict[str, Any]:
    async with playing(root, ScriptedGeneration(), **options) as servers:
        await servers.join()
        answers = await asyncio.gather(*(servers.run(name, row=row) for name, row in rows.items()))
        return dict(zip(rows, (result for result, _ in answers), strict=True))


async def test_rows_of_every_environment_are_played_to_their_end(tmp_path: Path) -> None:
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        for name, row in MIXED.items():
            result, headers = await servers.run(name, row=row)
            assert headers["x-turnpoint-result-digest"] == digest_of(result)
            assert result["terminated"] or result["truncated"]
            steps = sum(key.startswith(f"1/{name}/") for key in servers.generation.generated)
            assert headers["x-turnpoint-last-model-call-id"] == f"call-{steps - 1}"
            revisions = json.loads(headers["x-turnpoint-resource-revisions"])
            assert revisions == {ENVIRONMENT: 1 + steps}
            prompt = result["responses_create_params"]["input"]
            given = row["responses_create_params"]["input"]
            assert (prompt[:-1], prompt[-1]["role"]) == (given, "user")
            assert result["response"]["usage"]["output_tokens"] > 0
            kinds = [item.get("type", item.get("role")) for item in result["response"]["output"]]
            turn = ["message", "user"]
            if "tools" in row["responses_create_params"]:
                turn = ["function_call", "function_call_output"]
            # What follows the last step is shown to nobody, unless `max_steps` cut the episode.
            assert result["truncated"] is (steps == 12 and not result["terminated"])
            assert kinds == (turn * steps)[: None if result["truncated"] else -1]


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


async def test_a_saved_episode_goes_on_as_the_next_run(tmp_path: Path) -> None:
    """Break: leave the reward, `last_step` or `prompt_items` out of `RunState`."""
    rows = {name: row for name, row in MIXED.items() if not name.startswith("p0")}
    expected = await undisturbed(tmp_path / "undisturbed", rows)
    rows = {name: row for name, row in rows.items() if len(turns(expected[name])) > 5}
    assert len(rows) >= 8
    generation = ScriptedGeneration()
    async with playing(tmp_path, generation) as servers:
        await servers.join()
        runs = await parked(servers, 3, rows)
        assert (await servers.prepare(AGENT)).ready
        assert (await servers.prepare(ENVIRONMENT)).ready
        answers = await servers.commit_all()
        for run in runs:
            run.cancel()
    lines = {line.rollout_id: line for line in answers[AGENT].continuations}
    assert {lines[name].resource_state_revisions[ENVIRONMENT] for name in rows} == {5}
    async with playing(tmp_path, generation, expect_restore=True) as restored:
        await restored.join(2)
        files = {name: answer.files for name, answer in answers.items()}
        inventories = await restored.restore_all(files)
        assert {entry.revision for entry in inventories[ENVIRONMENT].sessions} == {5}
        await restored.resume_all("r1")
        for name, row in rows.items():
            result, headers = await restored.run(name, 1, row)
            assert strip(result) == strip(expected[name])
            again = [call for call in generation.calls_of(name) if "-a1/" in call]
            assert again[0] == f"{name}-a1/call-4"
            steps = len(turns(result))
            revisions = json.loads(headers["x-turnpoint-resource-revisions"])
            assert revisions == {ENVIRONMENT: 1 + steps}


def turns(result: dict[str, Any]) -> list[Any]:
    output = result["response"]["output"]
    return [item for item in output if item.get("type") in ("function_call", "message")]


async def test_a_session_that_is_no_episode_activates_nothing(tmp_path: Path) -> None:
    generation = ScriptedGeneration()
    row = rows_of("cliff_walking")[1]
    async with playing(tmp_path, generation) as servers:
        await servers.join()
        runs = await parked(servers, 2, {"p0_g0": row, "p0_g1": row})
        await servers.prepare(AGENT)
        await servers.prepare(ENVIRONMENT)
        answers = await servers.commit_all()
        for run in runs:
            run.cancel()
    path = servers.folder("c1") / answers[ENVIRONMENT].files[0].path
    sessions = [json.loads(line) for line in path.read_text().splitlines()]
    sessions[1]["state"] = sessions[1]["state"][:-8] + "AAAAAAA="
    data = "".join(json.dumps(one) + "\n" for one in sessions).encode()
    path.write_bytes(data)
    forged = (
        answers[ENVIRONMENT]
        .files[0]
        .model_copy(update={"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    )
    files = {name: answer.files for name, answer in answers.items()} | {ENVIRONMENT: [forged]}
    async with playing(tmp_path, generation, expect_restore=True) as restored:
        await restored.join(2)
        with pytest.raises(UnsupportedSchema, match="line 2: import_state raised"):
            await restored.restore_all(files)
        status = await restored.status(ENVIRONMENT)
        assert (status.phase, status.counts.sessions) == (Phase.AWAITING_RESTORE, 0)


async def post(
    servers: Fleet, path: str, body: Any, place: str, *, number: int = 0, run: int = 0
) -> httpx.Response:
    identity = Identity(incarnation=servers.incarnation, rollout_id="p0_g0", attempt=run)
    async with httpx.AsyncClient(base_url=servers.urls[ENVIRONMENT], trust_env=False) as http:
        headers = identity.mutation(place, number).headers()
        return await http.post(path, json=body, headers=headers)


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    return {"output": [{"type": "message", "role": "assistant", "content": [part]}]}


def called(*actions: Any) -> dict[str, Any]:
    return {
        "output": [
            {
                "type": "function_call",
                "call_id": f"c{number}",
                "name": "act",
                "arguments": json.dumps({"action": action}),
            }
            for number, action in enumerate(actions)
        ]
    }


async def test_a_step_issued_again_is_played_once(tmp_path: Path) -> None:
    """Break: let `Session.apply` forget receipts."""
    row = rows_of("cliff_walking")[1]
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        reset = await post(servers, "/reset", row, "seed")
        assert (await post(servers, "/reset", row, "seed")).text == reset.text
        body = {**row, "response": called("up")}
        first = await post(servers, "/step", body, "call-0")
        again = await post(servers, "/step", body, "call-0")
        assert (first.status_code, first.text) == (200, again.text)
        assert again.headers["x-turnpoint-resource-revision"] == "2"
        assert "row 2, column 0" in first.json()["info"]["tool_outputs"][0]["output"]
        other = await post(servers, "/step", {**row, "response": called("down")}, "call-0")
        assert (other.status_code, other.json()["code"]) == (409, "request_conflict")
        lost = await post(servers, "/step", body, "verify")
        assert (lost.status_code, lost.json()["code"]) == (409, "identity_mismatch")
        unknown = await post(servers, "/step", body, "call-0", run=1)
        assert (unknown.status_code, unknown.json()["code"]) == (410, "session_lost")


async def test_what_is_no_action_plays_nothing_and_says_what_is(tmp_path: Path) -> None:
    row = rows_of("blackjack")[0]
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        reset = (await post(servers, "/reset", row, "seed")).json()
        assert reset["observation"].startswith("Your hand: ")
        for number, response in enumerate(
            [said("I fold."), said("<action>fold</action>"), called(3), {"output": []}]
        ):
            call = f"call-{number}"
            answer = (await post(servers, "/step", {**row, "response": response}, call)).json()
            told = answer["observation"] or answer["info"]["tool_outputs"][0]["output"]
            assert told.startswith("That is no action. Respond with <action>stand</action>")
            assert (answer["reward"], answer["terminated"]) == (0.0, False)
        stood = said("Well.\n<ACTION> Stand </ACTION> or <action>hit</action>?")
        end = (await post(servers, "/step", {**row, "response": stood}, "call-4")).json()
        assert end["terminated"]
        after = await post(servers, "/step", {**row, "response": stood}, "call-5")
        assert (after.status_code, after.json()["detail"]) == (409, "the episode is over")


async def test_only_the_first_of_several_calls_acts_and_each_is_answered(tmp_path: Path) -> None:
    row = rows_of("cliff_walking")[1]
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        await post(servers, "/reset", row, "seed")
        body = {**row, "response": called("up", "right")}
        outputs = (await post(servers, "/step", body, "call-0")).json()["info"]["tool_outputs"]
        assert [one["call_id"] for one in outputs] == ["c0", "c1"]
        assert "row 2, column 0" in outputs[0]["output"]
        assert "only the first call" in outputs[1]["output"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"environment": "NoSuch-v0"}, "environment"),
        ({"environment": 3}, "environment"),
        ({"seed": -1}, "seed"),
        ({"environment_options": {"desc": ["SG"]}}, "environment_options.desc"),
        ({"environment_options": {"render_mode": "human"}}, "environment_options.render_mode"),
    ],
)
async def test_a_row_that_cannot_be_played_names_its_field(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        row = rows_of("frozen_lake")[0] | fields
        with pytest.raises(TurnpointError) as refused:
            await servers.run("p0_g0", row=row)
        assert refused.value.code == "invalid_request"
        assert refused.value.details == {"fields": [named]}


async def test_a_row_without_a_seed_meets_the_same_chances_whenever_it_starts_over(
    tmp_path: Path,
) -> None:
    """Break: take the seed of `gymnasium` (a random one)."""
    row = rows_of("blackjack")[0]
    rows = {f"p{n}_g0": row for n in range(8)}
    first = await undisturbed(tmp_path / "1", rows)
    second = await undisturbed(tmp_path / "2", rows)
    assert {name: strip(one) for name, one in first.items()} == {
        name: strip(one) for name, one in second.items()
    }
    assert len({strip(one["responses_create_params"]) for one in first.values()}) > 3


CART_POLE = {
    "responses_create_params": {
        "input": "Keep the pole up: <action>0</action> pushes left, <action>1</action> right."
    },
    "environment": "CartPole-v1",
}


async def test_an_environment_without_an_adapter_makes_the_server_restart_only(
    tmp_path: Path,
) -> None:
    """Break: let `Gymnasium.mode` be `export_restore` whatever it plays."""
    generation = ScriptedGeneration()
    environments = ("Blackjack-v1", "CartPole-v1")
    rows = {"p0_g0": CART_POLE}
    async with playing(tmp_path, ScriptedGeneration(), *environments, max_steps=6) as servers:
        await servers.join()
        capabilities = await servers.client.capabilities(servers.urls[ENVIRONMENT], ENVIRONMENT)
        assert capabilities.mode is Mode.RESTART_ONLY
        expected, _ = await servers.run("p9_g9", row=CART_POLE)
        assert expected["reward"] == 6.0
    async with playing(tmp_path, generation, *environments, max_steps=6) as servers:
        await servers.join()
        runs = await parked(servers, 3, rows)
        assert (await servers.prepare(AGENT)).ready
        assert (await servers.prepare(ENVIRONMENT)).ready
        answers = await servers.commit_all()
        assert answers[ENVIRONMENT].files == []
        (line,) = answers[AGENT].continuations
        assert line.resource_state_revisions == {ENVIRONMENT: None}
        runs[0].cancel()
    async with playing(
        tmp_path, generation, *environments, max_steps=6, expect_restore=True
    ) as restored:
        await restored.join(2)
        await restored.restore_all({name: answer.files for name, answer in answers.items()})
        for name in (AGENT, MODEL, ENVIRONMENT):
            request = DiscardRequest(**restored.who(name), restore_id="r1", rollout_ids=["p0_g0"])
            await restored.client.discard(restored.urls[name], name, request)
        await restored.resume_all("r1")
        result, _ = await restored.run("p0_g0", 1, CART_POLE)
        assert result["reward"] == 6.0
        again = [call for call in generation.calls_of("p0_g0") if "-a1/" in call]
        assert again == [f"p0_g0-a1/call-{k}" for k in range(6)]


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


@pytest.mark.parametrize(
    "fields",
    [{"resource": {"a": "http://a", "b": "http://b"}}, {"tool": {"act": ENVIRONMENT}}],
)
def test_a_gymnasium_agent_plays_one_environment(tmp_path: Path, fields: dict[str, Any]) -> None:
    given = {"resource": {ENVIRONMENT: "http://e"}, **fields}
    with pytest.raises(ValueError, match="one environment"):
        GymnasiumAgentSettings(
            name=AGENT, port=21_999, snapshot_root=tmp_path, model_url="http://m", **given
        )
