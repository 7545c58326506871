"""Resets and steps of the resource server `gymnasium`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gym.protocol import (
    TurnpointError,
)
from tests.gym.gymnasium_fleet import (
    ENVIRONMENT,
    called,
    playing,
    post,
    rows_of,
    said,
)
from tests.gym.scripted_generation import ScriptedGeneration


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


ROW: dict[str, Any] = {"responses_create_params": {"input": "Play, by <action></action>."}}


async def test_each_episode_of_a_caller_without_identity_meets_chances_of_its_own(
    tmp_path: Path,
) -> None:
    """Break: gym/environments/gymnasium_server.py: take the seed from `session.rollout_id`."""
    async with playing(tmp_path, ScriptedGeneration()) as servers:
        await servers.join()
        async with httpx.AsyncClient(base_url=servers.urls[ENVIRONMENT], trust_env=False) as http:
            resets = [(await http.post("/reset", json=ROW)).json() for _ in range(8)]
    assert len({reset["observation"] for reset in resets}) > 3
