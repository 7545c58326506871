"""The command line of vLLM; real vLLM with the tiny model behind the generation endpoint."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gym.protocol import HEADER_PARENT_KEY, Identity, staging_key
from rl.data_plane.rows import StagingRow, assemble
from rl.generation.app import Generation, create_app
from rl.policies.tiny_model import make_tiny_model
from rl.policies.vllm import POLICY_MODEL, vllm_command
from tests.ports import free_port

START_LIMIT_S = 180
TURNS = 10


class Plane:
    """Rows in a dict."""

    def __init__(self) -> None:
        self.rows: dict[str, StagingRow] = {}

    async def put_staging(self, key: str, row: StagingRow) -> None:
        self.rows[key] = row

    async def get_staging(self, keys: list[str]) -> dict[str, StagingRow]:
        return {key: self.rows[key] for key in keys if key in self.rows}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("vllm")
    make_tiny_model(folder / "model")
    port = free_port()
    argv, environment = vllm_command(folder / "model", port)
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env=os.environ | environment, cwd=folder, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not _healthy(port):
            assert process.poll() is None, (folder / "vllm.log").read_text()[-2_000:]
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        family = [*psutil.Process(process.pid).children(recursive=True), process]
        for member in family:
            member.kill()
        process.wait(timeout=10)


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False


def gym_rows() -> list[dict[str, Any]]:
    """NeMo Gym's rows of `example_session_state_mgmt`, as they are."""
    package = find_spec("resources_servers")
    if package is None or not package.submodule_search_locations:
        pytest.skip("nemo-gym is not installed")
    [base] = package.submodule_search_locations
    data = Path(base, "example_session_state_mgmt", "data", "example.jsonl").read_text()
    return [json.loads(line)["responses_create_params"] for line in data.splitlines()]


async def play(
    http: httpx.AsyncClient, plane: Plane, row: dict[str, Any], identity: Identity
) -> tuple[list[StagingRow], list[float]]:
    """Play a rollout of 10 turns; every answer must be valid tool calls."""
    names = ("name", "description", "parameters", "strict")
    tools = [
        {"type": "function", "function": {name: tool[name] for name in names}}
        for tool in row["tools"]
    ]
    messages, seconds, parent, chain = list(row["input"]), [], None, []
    for number in range(TURNS):
        call = identity.call(number)
        headers = call.headers() | ({HEADER_PARENT_KEY: parent} if parent else {})
        chat = {
            "messages": messages,
            "tools": tools,
            "tool_choice": "required",
            "max_tokens": 1_024,
        }
        start = time.monotonic()
        answer = await http.post("/v1/chat/completions", json=chat, headers=headers)
        seconds.append(time.monotonic() - start)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        for tool_call in choice["message"]["tool_calls"]:
            arguments = json.loads(tool_call["function"]["arguments"])
            if tool_call["function"]["name"] == "increment_counter":
                assert list(arguments) == ["count"]
                assert isinstance(arguments["count"], int)
            else:
                assert (tool_call["function"]["name"], arguments) == ("get_counter_value", {})
        parent = staging_key(call.incarnation, call.capture_key, f"call-{number}")
        chain.append(plane.rows[parent])
        results = [
            {"role": "tool", "tool_call_id": each["id"], "content": '{"success": true}'}
            for each in choice["message"]["tool_calls"]
        ]
        messages = [*messages, choice["message"], *results]
    return chain, seconds


@pytest.mark.vllm
@pytest.mark.timeout(300)
async def test_ten_turns_of_valid_tool_calls_that_a_second_run_repeats(vllm: str) -> None:
    plane = Plane()
    generation = Generation(
        plane, incarnation=1, policy_url=vllm, policy_model=POLICY_MODEL, weight_version="v1"
    )
    transport = httpx.ASGITransport(create_app(generation))
    seconds: list[float] = []
    async with httpx.AsyncClient(transport=transport, base_url="http://generation") as http:
        for prompt, row in enumerate(gym_rows()):
            identity = Identity(incarnation=1, rollout_id=f"p{prompt}_g0", attempt=0)
            chain, took = await play(http, plane, row, identity)
            seconds += took
            again, _ = await play(http, plane, row, identity.model_copy(update={"attempt": 1}))
            # Seeds depend on rollout and call alone, so another run plays the same tokens.
            assert [r.generation_ids for r in again] == [r.generation_ids for r in chain]
            made = assemble(chain, 0.0, b"{}")
            last = chain[-1]
            extends = made.token_ids == last.prompt_ids + last.generation_ids
            print(f"p{prompt}_g0: {len(made.token_ids)} tokens, one conversation: {extends}")
            assert extends
    await generation.aclose()
    print(f"{len(seconds)} turns: median {statistics.median(seconds):.3f} s, {max(seconds):.3f} s")


def test_the_command_line_names_model_and_port(tmp_path: Path) -> None:
    argv, environment = vllm_command(tmp_path, 23_100)
    assert argv[argv.index("--model") + 1] == str(tmp_path)
    assert argv[argv.index("--port") + 1] == "23100"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
