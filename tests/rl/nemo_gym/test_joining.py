"""Finding and joining servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fastapi.responses import JSONResponse
from pydantic import SecretStr

from gym.client import GymClient
from gym.protocol import Kind, Mode, OtherServer, Role, StaleIncarnation, Unauthorized
from rl.config import JobConfig, ServerConfig
from rl.errors import ServersMissing, ServersNotAwaiting, ServerUnfit
from rl.nemo_gym.joining import discover_and_join
from tests.rl.folder_cases import config_of
from tests.rl.gym_fakes import FakeFleet, FakeServer, Script, fake_fleet


@pytest_asyncio.fixture
async def fakes() -> AsyncIterator[FakeFleet]:
    async with fake_fleet() as fleet:
        yield fleet


@pytest_asyncio.fixture
async def client() -> AsyncIterator[GymClient]:
    async with GymClient(SecretStr("token")) as client:
        yield client


@pytest.fixture
def config(fakes: FakeFleet, tmp_path: Path) -> JobConfig:
    servers = [
        ServerConfig(name=server.name, kind=server.kind, url=server.url)
        for server in fakes.servers.values()
    ]
    return config_of(tmp_path).model_copy(update={"servers": servers})


async def test_all_are_asked_what_they_are_before_any_is_joined(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    joined = await discover_and_join(client, config, 1, 5)
    assert [server.name for server in joined] == list(fakes.servers)
    assert joined[1].role is Role.AUXILIARY
    assert joined[0].instance_id == "policy_model-life-1"
    operations = [asked.operation for asked in fakes.journal]
    assert operations == ["capabilities"] * 6 + ["join"] * 6
    assert fakes.kinds("join") == [Kind.RESOURCE, Kind.MODEL, Kind.AGENT]
    (body,) = fakes.bodies("join", "counter")
    assert (body["job_id"], body["incarnation"]) == ("job-1", 1)


async def test_those_that_do_not_answer_within_the_wait_are_all_named(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    await fakes["agent_b"].stop()
    fakes["tools"].hang("capabilities")
    started = time.monotonic()
    with pytest.raises(ServersMissing) as refused:
        await discover_and_join(client, config, 1, 0.6)
    assert time.monotonic() - started < 2
    assert refused.value.details["servers"] == ["agent_b", "tools"]
    assert fakes.asked("join") == []


async def test_a_server_that_starts_late_is_waited_for(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    await fakes["agent_b"].stop()

    async def start() -> None:
        await asyncio.sleep(0.4)
        await fakes["agent_b"].start()

    starting = asyncio.create_task(start())
    joined = await discover_and_join(client, config, 1, 5)
    await starting
    assert len(joined) == 6


async def test_servers_that_do_not_fit_are_named_with_the_reason_and_none_is_joined(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    async def two_processes(body: dict) -> dict:
        return {**fakes["counter"].default("capabilities", body), "worker_processes": 2}

    async def newer(body: dict) -> dict:
        return {**fakes["tools"].default("capabilities", body), "schema_versions": [2]}

    async def gone(_body: dict) -> JSONResponse:
        return JSONResponse({"detail": "Not Found"}, status_code=404)

    fakes["counter"].scripts["capabilities"] = two_processes
    fakes["tools"].scripts["capabilities"] = newer
    fakes["agent_a"].scripts["capabilities"] = gone
    fakes["judge"].kind = Kind.RESOURCE
    with pytest.raises(ServerUnfit) as refused:
        await discover_and_join(client, config, 1, 5)
    assert set(refused.value.details["servers"]) == {"counter", "tools", "agent_a", "judge"}
    assert fakes.asked("join") == []


async def test_another_server_at_a_url_is_typed_with_both_names_and_none_is_joined(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    """Break: take the answer of any server there."""

    async def misnamed(body: dict) -> dict:
        return {**fakes["counter"].default("capabilities", body), "server": "tools_old"}

    fakes["counter"].scripts["capabilities"] = misnamed
    with pytest.raises(
        OtherServer, match=r"counter's URL is called tools_old.*`servers`"
    ) as refused:
        await discover_and_join(client, config, 1, 5)
    assert refused.value.participant == "counter"
    assert fakes.asked("join") == []


async def test_a_job_has_exactly_one_policy(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    fakes["judge"].role = Role.POLICY
    with pytest.raises(ServerUnfit, match="2 policy"):
        await discover_and_join(client, config, 1, 5)


async def test_an_unmodified_resource_server_takes_part_as_restart_only(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    async def gone(_body: dict) -> JSONResponse:
        return JSONResponse({"detail": "Not Found"}, status_code=404)

    fakes["tools"].scripts["capabilities"] = gone
    joined = await discover_and_join(client, config, 1, 5)
    assert (joined[-1].mode, joined[-1].instance_id) == (Mode.RESTART_ONLY, None)
    assert "tools" not in fakes.asked("join")


async def test_refusals_are_raised_as_they_are(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    fakes["agent_a"].fail("join", StaleIncarnation("another job"))
    with pytest.raises(StaleIncarnation, match="agent_a"):
        await discover_and_join(client, config, 1, 5)
    fakes["counter"].fail("capabilities", Unauthorized("no"))
    with pytest.raises(Unauthorized, match="counter"):
        await discover_and_join(client, config, 1, 5)


async def test_for_a_restore_servers_of_a_replaced_job_are_waited_for(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    """They are being restarted. Break: join whatever answers, and each is refused as stale."""
    phase = "open"

    async def restarting(body: dict) -> dict:
        return {**fakes["counter"].default("capabilities", body), "phase": phase}

    for server in fakes.servers.values():
        server.scripts["capabilities"] = _in_phase(server, "awaiting_restore")
    fakes["counter"].scripts["capabilities"] = restarting
    joining = asyncio.create_task(discover_and_join(client, config, 2, 5, awaiting=True))
    await asyncio.sleep(0.3)
    assert fakes.asked("join") == []
    phase = "awaiting_restore"
    assert len(await joining) == 6


async def test_servers_that_are_not_restarted_for_a_restore_are_named_and_none_is_joined(
    fakes: FakeFleet, client: GymClient, config: JobConfig
) -> None:
    for server in fakes.servers.values():
        server.scripts["capabilities"] = _in_phase(server, "awaiting_restore")
    for name in ("tools", "agent_a"):
        fakes[name].scripts["capabilities"] = _in_phase(fakes[name], "open")
    with pytest.raises(ServersNotAwaiting, match="--expect-restore") as refused:
        await discover_and_join(client, config, 2, 0.4, awaiting=True)
    assert set(refused.value.details["servers"]) == {"tools", "agent_a"}
    assert fakes.asked("join") == []


def _in_phase(server: FakeServer, phase: str) -> Script:
    async def answer(body: dict) -> dict:
        return {**server.default("capabilities", body), "phase": phase}

    return answer
