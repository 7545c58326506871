"""The main job with every kind of server: saved, killed whole, restored, and the same rows.

Four agents (tools with a stateless server, tools with a `restart_only` one, gymnasium, an essay
whose verify asks a judge) and six resource servers, each a process of its own, beside the local
stack. What cannot be continued starts over and is reported; everything else continues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from activities.contract import RestoreResult
from gym.protocol import Kind
from rl.config import ServerConfig
from tests.gym.gymnasium_fleet import rows_of
from tests.gym.scenarios.test_several_resources import OFFERED
from tests.ports import free_port
from tests.real.live import Live, wait_for
from tests.real.own_servers import OwnServers
from tests.twin.rows import differences

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(540)]
PORT_BASE = 29_300
GENERATION_PORT = free_port()
KINDS = {
    "policy_model": Kind.MODEL,
    "judge": Kind.MODEL,
    "tools_agent": Kind.AGENT,
    "dice_agent": Kind.AGENT,
    "gymnasium_agent": Kind.AGENT,
    "essay_agent": Kind.AGENT,
    "counter": Kind.RESOURCE,
    "weather": Kind.RESOURCE,
    "dice": Kind.RESOURCE,
    "gymnasium": Kind.RESOURCE,
    "essay": Kind.RESOURCE,
}
URLS = {name: f"http://127.0.0.1:{free_port()}" for name in KINDS}


def _tools(*names: str, tools: str = "") -> list[str]:
    listed = ",".join(f"{name}={URLS[name]}" for name in names)
    flags = ["--model-url", URLS["policy_model"], "--max-steps", "20", "--resource", listed]
    return ["gym.agent.server", *flags, *(["--tool", tools] if tools else [])]


GENERATION = ["--generation-url", f"http://127.0.0.1:{GENERATION_PORT}/v1"]
MODULES = {
    "policy_model": ["gym.model.server", *GENERATION],
    "judge": ["gym.model.server", "--role", "auxiliary", *GENERATION],
    "tools_agent": _tools("counter", "weather", tools="get_weather=weather"),
    "dice_agent": _tools("counter", "dice", tools="roll_die=dice"),
    "gymnasium_agent": [
        *("gym.agent.gymnasium_server", "--model-url", URLS["policy_model"], "--max-steps", "20"),
        *("--resource", f"gymnasium={URLS['gymnasium']}"),
    ],
    "essay_agent": _tools("essay"),
    "counter": ["gym.environments.counter", "--tool-delay-s", "0.1"],
    "weather": ["examples.weather"],
    "dice": ["examples.dice"],
    "gymnasium": ["gym.environments.gymnasium_server"],
    "essay": ["examples.essay", "--judge-url", URLS["judge"]],
}


def _row(agent: str, *servers: str) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": "go", "tools": [OFFERED[name] for name in servers]},
        "initial_count": 0,
        "expected_count": 9,
        "agent_ref": {"type": "responses_api_agents", "name": agent},
    }


def dataset() -> list[dict[str, Any]]:
    """One row of each sort; blackjack as NeMo Gym has it, but for the agent's name."""
    named = {"agent_ref": {"type": "responses_api_agents", "name": "gymnasium_agent"}}
    return [
        _row("tools_agent", "counter", "weather"),
        _row("dice_agent", "counter", "dice"),
        _row("essay_agent", "essay"),
        rows_of("blackjack")[0] | named,
        *(rows_of(name)[1] for name in ("cliff_walking", "frozen_lake", "taxi")),
    ]


@dataclass(frozen=True)
class Story:
    """Everything that the tests look at, from the one run of this module."""

    undisturbed: dict[str, dict[str, Any]]
    restored: RestoreResult
    rows: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run it once: undisturbed, then again with a crash."""
    configured = [ServerConfig(name=n, kind=KINDS[n], url=URLS[n]) for n in KINDS]
    live = Live(
        tmp_path_factory.mktemp("mixed"),
        {"policy": {"delay-s": "0.7", "turns": "14", "turns-spread": "2"}},
        port_base=PORT_BASE,
        servers=[one.model_dump(mode="json") for one in configured],
        generation_port=GENERATION_PORT,
    )
    servers = OwnServers(live, URLS, MODULES)
    rows = live.folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in dataset()))
    job = ("run", "--rows", str(rows), "--generations", "2")
    try:
        live.up()
        servers.start(expect_restore=False)
        live.cli(*job)
        undisturbed = live.rows()
        servers.kill()
        servers.start(expect_restore=False)
        live.cli(*job, "--fresh", "--detach")
        began = time.time()
        wait_for(lambda: _steps(live, began) >= 4, "some turns", 60)
        saved = live.cli("save")
        assert saved["outcome"] == "published"
        before = _steps(live, began)
        wait_for(lambda: _steps(live, began) >= before + 2, "turns after the save", 60)
        servers.kill()
        live.crash()
        live.up()
        servers.start(expect_restore=True)
        restored = RestoreResult.model_validate(live.cli("restore"))
        live.wait_until_finished()
        yield Story(undisturbed, restored, live.rows())
    finally:
        servers.kill()
        live.down()


def _steps(live: Live, since: float) -> int:
    """Mutations of the gymnasium server's slowest rollout."""
    lines = [one for one in live.log("gymnasium", "mutation") if one["ts"] > since]
    return max((line["revision"] for line in lines), default=0)


def test_the_rows_equal_those_of_the_undisturbed_job(story: Story) -> None:
    assert len(story.undisturbed) == 14
    assert all(row["reward"] is not None for row in story.undisturbed.values())
    assert differences(story.undisturbed, story.rows) == []


def test_only_what_used_the_restart_only_server_starts_over_and_is_reported(story: Story) -> None:
    over = {
        one.rollout_id: one.restarted_because
        for one in story.restored.continued
        if one.restarted_because is not None
    }
    assert over == dict.fromkeys(("p1_g0", "p1_g1"), "used dice, which is restart_only")
    went_on = {one.rollout_id for one in story.restored.continued} - over.keys()
    # Tools with a stateless server, the essay, and each environment of a map.
    assert {name.partition("_")[0] for name in went_on} >= {"p0", "p2", "p4", "p6"}
    continued = [one for one in story.restored.continued if one.rollout_id in went_on]
    assert all(one.last_committed_model_call_id is not None for one in continued)
