"""Several resource servers per rollout, of every mode, and a judge inside verify."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from examples.dice import Dice
from examples.essay import Essay, EssaySettings
from examples.weather import Weather
from gym.agent.server import AgentServerSettings, create_agent_app
from gym.environments.counter import Counter
from gym.model.server import ModelServerSettings, create_model_app
from gym.protocol import (
    AcknowledgeRequest,
    CommitAnswer,
    DiscardRequest,
    Kind,
    Mode,
    Phase,
    RestoreAnswer,
    Role,
)
from gym.resource import Environment, environment_app
from gym.server.settings import ServerSettings
from rl.messages import JoinedServer
from rl.records.inventories import MatchedInventory, rollouts_to_restart
from tests.gym.fleet import AGENT, COUNTER, MODEL, Fleet, Make, fleet_of
from tests.gym.scripted_generation import ScriptedGeneration

pytestmark = pytest.mark.real

WEATHER, DICE, ESSAY, JUDGE = "weather", "dice", "essay", "judge"
TOOLS = {
    "increment_counter": COUNTER,
    "get_weather": WEATHER,
    "roll_die": DICE,
    "write_paragraph": ESSAY,
}


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}}
    return {"type": "function", "name": name, "parameters": schema}


OFFERED = {
    COUNTER: tool("increment_counter", count="integer"),
    WEATHER: tool("get_weather", city="string"),
    DICE: tool("roll_die"),
    ESSAY: tool("write_paragraph", text="string"),
}


def row_for(*servers: str) -> dict[str, Any]:
    return {
        "responses_create_params": {
            "input": "go",
            "tools": [OFFERED[name] for name in servers],
        },
        "initial_count": 0,
        "expected_count": 1,
    }


class Judge(httpx.AsyncHTTPTransport):
    """The essay server's way to its judge: a question passes when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.headers: list[dict[str, str]] = []
        self.failing = 0
        """So many questions get no connection."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.headers.append(dict(request.headers))
        self.asked.set()
        await self.may_go.wait()
        if self.failing > 0:
            self.failing -= 1
            raise httpx.ConnectError("the judge is being started")
        return await super().handle_async_request(request)


ENVIRONMENTS: Mapping[str, type[Environment[Any]]] = {
    COUNTER: Counter,
    WEATHER: Weather,
    DICE: Dice,
}


@asynccontextmanager
async def several(
    root: Path,
    generation: ScriptedGeneration,
    *resources: str,
    judge: Judge | None = None,
    asks: str = JUDGE,
    expect_restore: bool = False,
) -> AsyncIterator[Fleet]:
    """An agent with these resource servers, the first of them the environment."""

    def agent(common: dict[str, Any], urls: Any) -> FastAPI:
        return create_agent_app(
            AgentServerSettings(
                **common,
                model_url=urls[MODEL],
                resource={name: urls[name] for name in resources},
                tool={tool: name for tool, name in TOOLS.items() if name in resources[1:]},
            )
        )

    def essay(common: dict[str, Any], urls: Any) -> FastAPI:
        settings = EssaySettings(**common, judge_url=urls[asks])
        return environment_app(Essay(settings, judge), settings)

    def resource(name: str) -> Make:
        if name == ESSAY:
            return essay
        return lambda common, urls: environment_app(ENVIRONMENTS[name](), ServerSettings(**common))

    def judge_server(common: dict[str, Any], urls: Any) -> FastAPI:
        url = f"{urls['generation']}/v1"
        return create_model_app(
            ModelServerSettings(**common, generation_url=url, role=Role.AUXILIARY)
        )

    servers: dict[str, tuple[Kind, Make]] = {
        JUDGE: (Kind.MODEL, judge_server),
        AGENT: (Kind.AGENT, agent),
        **{name: (Kind.RESOURCE, resource(name)) for name in resources},
    }
    async with fleet_of(root, generation, servers, expect_restore=expect_restore) as made:
        yield made


async def acknowledge(servers: Fleet, rollout_id: str, headers: dict[str, str]) -> None:
    request = AcknowledgeRequest(
        **servers.who(AGENT),
        rollout_id=rollout_id,
        attempt_index=0,
        result_digest=headers["x-turnpoint-result-digest"],
    )
    await servers.client.acknowledge(servers.urls[AGENT], AGENT, request)


# --- several servers ------------------------------------------------------------------------------


def calls_in(result: dict[str, Any]) -> list[str]:
    output = result["response"]["output"]
    return [item["name"] for item in output if item["type"] == "function_call"]


async def test_each_tool_is_called_where_it_is(tmp_path: Path) -> None:
    """Break: let `AgentContext.peer_of` answer the environment for every tool."""
    order = (COUNTER, WEATHER, DICE)
    async with several(tmp_path, ScriptedGeneration(), *order) as servers:
        await servers.join()
        seen: set[str] = set()
        for n in range(4):
            result, headers = await servers.run(f"p{n}_g0", row=row_for(*order))
            named = calls_in(result)
            seen |= set(named)
            outputs = [
                json.loads(item["output"])
                for item in result["response"]["output"]
                if item["type"] == "function_call_output"
            ]
            shapes = {
                "increment_counter": {"success"},
                "get_weather": {"city", "weather_description"},
                "roll_die": {"rolled", "rolls"},
            }
            assert [set(one) for one in outputs] == [shapes[name] for name in named]
            # Each session saw its seed and its own tools; the first one the verify as well.
            revisions = json.loads(headers["x-turnpoint-resource-revisions"])
            counted = 2 + named.count("increment_counter")
            assert revisions == {COUNTER: counted, WEATHER: None, DICE: None}
            assert "final_count" in result
        assert seen == {"increment_counter", "get_weather", "roll_die"}


def joined(servers: Fleet, modes: Mapping[str, Mode]) -> list[JoinedServer]:
    return [
        JoinedServer(
            name=name,
            kind=servers.kinds[name],
            url=servers.urls[name],
            instance_id=servers.instances[name],
            mode=mode,
        )
        for name, mode in modes.items()
    ]


async def modes_of(servers: Fleet) -> dict[str, Mode]:
    names = servers.of(Kind.RESOURCE)
    found = [await servers.client.capabilities(servers.urls[name], name) for name in names]
    return {name: one.mode for name, one in zip(names, found, strict=True)}


async def starting_over(servers: Fleet, restored: dict[str, RestoreAnswer]) -> dict[str, str]:
    """Rollouts that start over by RL's own rule, given the restored inventory."""
    held = MatchedInventory()
    for line in restored[AGENT].continuations:
        held.continuations[line.rollout_id] = line
    for name in servers.of(Kind.RESOURCE):
        for entry in restored[name].sessions:
            held.sessions.setdefault(entry.rollout_id, {})[name] = entry
    return rollouts_to_restart(held, joined(servers, await modes_of(servers)))


async def saved_at(
    root: Path, generation: ScriptedGeneration, order: tuple[str, ...], *rollouts: str
) -> dict[str, CommitAnswer]:
    """Rollouts with these servers, saved after their third turn, and lost."""
    async with several(root, generation, *order) as servers:
        await servers.join()
        await generation.hold_from(2)
        row = row_for(*order)
        runs = [asyncio.create_task(servers.run(name, row=row)) for name in rollouts]
        await generation.until_waiting("call-2", len(rollouts))
        closing = asyncio.create_task(servers.prepare(MODEL))
        async with asyncio.timeout(10):
            while (await servers.status(MODEL)).phase is not Phase.PREPARING:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await generation.hold_from(None)
        assert (await closing).ready
        assert all(answer.ready for answer in await servers.prepare_all())
        answers = await servers.commit_all()
        for run in runs:
            run.cancel()
        return answers


async def test_a_rollout_that_used_a_stateless_server_continues(tmp_path: Path) -> None:
    """Break: ask a cookie of a stateless server to name the session of this process."""
    order, names = (COUNTER, WEATHER), ("p0_g0", "p1_g0")
    generation, undisturbed = ScriptedGeneration(), ScriptedGeneration()
    async with several(tmp_path / "undisturbed", undisturbed, *order) as servers:
        await servers.join()
        expected = {name: (await servers.run(name, row=row_for(*order)))[0] for name in names}
    assert {"get_weather", "increment_counter"} == set(calls_in(expected["p0_g0"]))
    answers = await saved_at(tmp_path, generation, order, *names)
    assert answers[WEATHER].files == []
    async with several(tmp_path, generation, *order, expect_restore=True) as restored:
        await restored.join(2)
        assert (await modes_of(restored))[WEATHER] is Mode.STATELESS
        inventory = await restored.restore_all({n: one.files for n, one in answers.items()})
        assert await starting_over(restored, inventory) == {}
        await restored.resume_all("r1")
        for name in names:
            result, _ = await restored.run(name, 1, row_for(*order))
            assert result == expected[name]
            again = [call for call in generation.calls_of(name) if "-a1/" in call]
            assert again[0] == f"{name}-a1/call-3"


async def test_a_rollout_whose_environment_is_stateless_continues(tmp_path: Path) -> None:
    order = (WEATHER,)
    generation = ScriptedGeneration()
    answers = await saved_at(tmp_path, generation, order, "p0_g0")
    async with several(tmp_path, generation, *order, expect_restore=True) as restored:
        await restored.join(2)
        inventory = await restored.restore_all({n: one.files for n, one in answers.items()})
        assert await starting_over(restored, inventory) == {}
        await restored.resume_all("r1")
        result, _ = await restored.run("p0_g0", 1, row_for(*order))
        assert result["reward"] == 1.0
        assert generation.calls_of("p0_g0")[3] == "p0_g0-a1/call-3"


async def test_a_rollout_that_used_a_restart_only_server_starts_over(tmp_path: Path) -> None:
    """Break: let `Environment.mode` say `export_restore` without the two methods."""
    order, names = (COUNTER, DICE), ("p0_g0", "p1_g0")
    generation, undisturbed = ScriptedGeneration(), ScriptedGeneration()
    async with several(tmp_path / "undisturbed", undisturbed, *order) as servers:
        await servers.join()
        expected = {name: (await servers.run(name, row=row_for(*order)))[0] for name in names}
    answers = await saved_at(tmp_path, generation, order, *names)
    assert answers[DICE].files == []
    async with several(tmp_path, generation, *order, expect_restore=True) as restored:
        await restored.join(2)
        inventory = await restored.restore_all({n: one.files for n, one in answers.items()})
        over = await starting_over(restored, inventory)
        assert over == dict.fromkeys(names, "used dice, which is restart_only")
        for name in restored.of(Kind.AGENT, Kind.MODEL, Kind.RESOURCE):
            request = DiscardRequest(**restored.who(name), restore_id="r1", rollout_ids=list(over))
            await restored.client.discard(restored.urls[name], name, request)
        assert (await restored.status(COUNTER)).counts.sessions == 0
        await restored.resume_all("r1")
        for name in names:
            result, _ = await restored.run(name, 1, row_for(*order))
            assert result == expected[name]
            again = [call for call in generation.calls_of(name) if "-a1/" in call]
            assert again[0] == f"{name}-a1/call-0"


# --- a judge inside verify ------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [JUDGE, MODEL])
async def test_a_judge_answers_a_verify_while_a_save_waits_for_it(
    tmp_path: Path, asks: str
) -> None:
    """A save that begins while the judge is asked waits for the verify, never the other way.

    The judge is a server of its own, or the policy's, which is closed by then. Break: admit
    inner calls of `ModelPart.call` only while the server is open.
    """
    judge, generation = Judge(), ScriptedGeneration()
    async with several(tmp_path, generation, ESSAY, judge=judge, asks=asks) as servers:
        await servers.join()
        judge.may_go.clear()
        run = asyncio.create_task(servers.run("p0_g0", row=row_for(ESSAY)))
        await asyncio.wait_for(judge.asked.wait(), 10)
        for name in servers.of(Kind.MODEL):
            assert (await servers.prepare(name)).ready
        waiting = await servers.prepare(AGENT, budget_s=0.2)
        assert (waiting.ready, [one.where for one in waiting.blockers]) == (False, ["verify"])
        judge.failing = 1  # and it is started again meanwhile
        judge.may_go.set()
        result, headers = await asyncio.wait_for(run, 5)
        assert result["verdict"].startswith("nobody is done")  # an inner call: no rollout's
        await acknowledge(servers, "p0_g0", headers)
        assert all(answer.ready for answer in await servers.prepare_all())

        assert len(judge.headers) == 2
        for sent in judge.headers:
            assert sent["x-turnpoint-request-id"] == "p0_g0/verify/0"
            assert sent["x-turnpoint-rollout-id"] == "p0_g0"
            assert "x-turnpoint-model-call-id" not in sent
        # Nothing of it is in the ledger: the training row ends with the run's own last call.
        manifest = await servers.client.manifest(servers.urls[MODEL], MODEL, "p0_g0")
        last = headers["x-turnpoint-last-model-call-id"]
        assert [row.model_call_id for row in manifest.records][-1] == last
        answers = await servers.commit_all()
        assert answers[JUDGE].files == []
        assert answers[ESSAY].sessions[0].revision == 2 + len(calls_in(result))
        await servers.resume_all()
