"""The NemoGym actor on a real Ray cluster: many runs, control calls past them, coming back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from fastapi.responses import JSONResponse

from gym.protocol import Phase, StaleIncarnation, TurnpointError, digest_of
from rl.actors import call
from rl.errors import ActorLost, RayUnreachable, ServerUnfit
from rl.messages import NEMO_GYM, RAY_NAMESPACE, SINGLE_CONTROLLER, RunRequest, RunResult
from rl.nemo_gym.actor import _token, nemo_gym
from tests.rl.folder_cases import config_of
from tests.rl.gym_fakes import FakeFleet, fake_fleet
from tests.rl.ray_cluster import ray_cluster

RUNS = 1000
RESULT = {"reward": 0.5}


def _request(number: int) -> RunRequest:
    return RunRequest(
        rollout_id=f"p{number}_g0", attempt_index=0, agent="agent_a", row={"number": number}
    )


async def _repeated(method: str, *args: Any) -> Any:
    """Call the actor, over its restarts too."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call(NEMO_GYM, method, *args)
            except (ActorLost, RayUnreachable, ray.exceptions.RayError):
                await asyncio.sleep(0.2)


def _come_back() -> None:
    ray.kill(ray.get_actor(NEMO_GYM, namespace=RAY_NAMESPACE), no_restart=False)


def _serve(fakes: FakeFleet, gate: asyncio.Event) -> list[int]:
    arrived: list[int] = []

    async def run(body: dict[str, Any]) -> JSONResponse:
        arrived.append(body["number"])
        await gate.wait()
        return JSONResponse(RESULT, headers={"x-turnpoint-result-digest": digest_of(RESULT)})

    fakes["agent_a"].scripts["run"] = run
    return arrived


async def _until(arrived: list[int], count: int) -> None:
    async with asyncio.timeout(60):
        while len(arrived) < count:  # noqa: ASYNC110 the fake servers have no events
            await asyncio.sleep(0.02)


def _start_controller(servers: list[Any]) -> Any:
    class Controller:  # within a function: pickled by value, `tests` is not importable there
        async def servers(self, incarnation: int) -> list[Any]:
            assert incarnation == 1
            return servers

    return ray.remote(Controller).options(name=SINGLE_CONTROLLER, num_cpus=0).remote()


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Break: rl/nemo_gym/actor.py: read it without `read_secret_file`."""
    config = config_of(tmp_path)
    config.control_token_file.write_text("s3cret")
    config.control_token_file.chmod(0o644)
    with pytest.raises(ServerUnfit, match=r"control_token_file: .* mode 0644") as caught:
        _token(config)
    assert "s3cret" not in str(caught.value)


@pytest.mark.real
async def test_control_calls_pass_a_thousand_runs_and_the_actor_comes_back(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config.control_token_file.touch(mode=0o600)
    config.control_token_file.write_text("token\n")
    async with fake_fleet() as fakes:
        gate = asyncio.Event()
        arrived = _serve(fakes, gate)
        with ray_cluster():
            nemo_gym(config, 1, fakes.joined())
            await call(NEMO_GYM, "status", 1, timeout_s=60)
            with pytest.raises(StaleIncarnation):
                await call(NEMO_GYM, "status", 2)

            runs = [
                asyncio.create_task(call(NEMO_GYM, "run", 1, _request(number)))
                for number in range(RUNS)
            ]
            await _until(arrived, RUNS)
            fakes.hold("checkpoint-1", Phase.PREPARED)
            started = time.monotonic()
            assert await call(NEMO_GYM, "renew", 1, "checkpoint-1", 5.0)
            assert len(await call(NEMO_GYM, "status", 1)) == 6
            reports = await call(NEMO_GYM, "resume_checkpoint", 1, "checkpoint-1")
            assert time.monotonic() - started < 2
            assert all(report.note is None for report in reports)
            gate.set()
            results: list[RunResult] = await asyncio.gather(*runs)
            assert {result.rollout_id for result in results} == {f"p{n}_g0" for n in range(RUNS)}
            assert sorted(arrived) == list(range(RUNS))
            await call(NEMO_GYM, "acknowledge", 1, "p0_g0", 0, digest_of(RESULT), "agent_a")
            assert fakes.asked("acknowledge") == ["agent_a"]

            # Before there is a controller: the list that the restore has handed to it.
            _come_back()
            assert len(await _repeated("status", 1)) == 6

            # From then on the controller's; a join would raise the fakes' count.
            moved = [
                server.model_copy(update={"instance_id": "told-by-the-controller"})
                for server in fakes.joined()
            ]
            controller = _start_controller(moved)
            _come_back()
            await _repeated("status", 1)
            assert fakes.bodies("status", "counter")[-1]["instance_id"] == "told-by-the-controller"
            assert fakes.asked("join") == fakes.asked("capabilities") == []
            again = await _repeated("run", 1, _request(7))
            assert (again.rollout_id, arrived[-1]) == ("p7_g0", 7)
            with pytest.raises(TurnpointError):
                await call(NEMO_GYM, "inventory", 1, "checkpoint-1")
            ray.kill(controller)
