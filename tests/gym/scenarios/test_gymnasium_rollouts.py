"""The gymnasium-style agent and its resource server together, undisturbed, saved and restored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gym.protocol import (
    DiscardRequest,
    Mode,
    Phase,
    UnsupportedSchema,
    digest_of,
)
from tests.gym.fleet import MODEL
from tests.gym.gymnasium_fleet import (
    AGENT,
    CART_POLE,
    ENVIRONMENT,
    MIXED,
    parked,
    playing,
    rows_of,
    strip,
    turns,
    undisturbed,
)
from tests.gym.scripted_generation import ScriptedGeneration

pytestmark = pytest.mark.real


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
            # The model never sees what follows the last step, unless `max_steps` cut the episode.
            assert result["truncated"] is (steps == 12 and not result["terminated"])
            assert kinds == (turn * steps)[: None if result["truncated"] else -1]


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
