"""The processes of a local stack: command line, environment and ready check of each.

| name | what | ready when |
|---|---|---|
| `temporal` | Temporal dev server with its UI | it answers about the namespace `default` |
| `ray` | Ray head | the GCS answers |
| `policy` | vLLM with the tiny model, or the scripted policy | it lists its model |
| as they are called | the Gym servers that have a command | they answer `capabilities` |
| `worker_1`, `worker_2` ... | snapshot workers | they say so in their log |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from gym.protocol.control import BASE_PATH
from rl.policies.vllm import vllm_command
from workers.config import gym_servers
from workers.config.gym_servers import GymServer
from workers.config.key_files import read_key_file
from workers.config.settings import ENV_PREFIX, Settings
from workers.stack import ray_head, temporal_server
from workers.stack.ports import HOST
from workers.stack.python_path import package_folder, project_command, with_packages

WORKER_PREFIX = "worker_"
WORKER_READY = b'"event": "ready"'
MODEL_FOLDER = "model"
_NOT_FOUND = 404


@dataclass(frozen=True)
class Part:
    """One process of a stack."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    """Its whole environment, before the stack's marks."""
    folder: Path
    """Its working folder."""
    is_ready: Callable[[bytes], bool]
    """Called with what the process has logged since its start; False: not yet."""
    url: str | None = None
    after: frozenset[str] = frozenset()
    """Parts that have to be ready before it is started."""


def parts(
    settings: Settings, ports: Mapping[str, int], *, ray_folder: Path, expect_restore: bool
) -> list[Part]:
    """The processes of a stack, in the order in which they are started.

    Args:
        settings: As `workers.stack.resolve` answered them.
        ports: The chosen ports by name.
        ray_folder: Ray's temporary folder.
        expect_restore: Whether the Gym servers start awaiting a restore.
    """
    # `python -m` puts its current folder first on the module search path, and Ray does so in every
    # worker process of a driver: processes that run no code of the project start in this one.
    folder = package_folder(settings.state_dir)
    own = partial(Part, env=child_environment(settings), folder=folder)
    found = []
    if "temporal" in ports:
        temporal = f"{HOST}:{ports['temporal']}"
        found.append(
            own(
                "temporal",
                temporal_server.command(
                    ports["temporal"], ports["temporal_ui"], settings.state_dir
                ),
                is_ready=lambda log: temporal_server.is_ready(temporal),
                url=f"http://{HOST}:{ports['temporal_ui']}",
            )
        )
    if "ray" in ports:
        ray = f"{HOST}:{ports['ray']}"
        command = ray_head.command(
            ports["ray"],
            client_port=ports["ray_client"],
            agent_port=ports["ray_agent"],
            cpus=settings.ray_cpus,
            folder=ray_folder,
        )
        found.append(own("ray", command, is_ready=lambda log: ray_head.is_ready(ray), url=ray))
    needs = frozenset(part.name for part in found)
    if "policy" in ports:
        url = f"http://{HOST}:{ports['policy']}/v1"
        command, env = _policy(settings, ports["policy"])
        found.append(
            own(
                "policy",
                [*command, *_flags(settings, "policy")],
                env=child_environment(settings) | env,
                is_ready=lambda log: _answers(f"{url}/models"),
                url=url,
            )
        )
    found += [
        _gym(settings, server, expect_restore) for server in settings.servers if server.command
    ]
    worker = [sys.executable, "-m", "workers.worker"]
    for n in range(1, settings.workers + 1):
        found.append(own(f"{WORKER_PREFIX}{n}", worker, is_ready=_worker_is_ready, after=needs))
    return found


def child_environment(settings: Settings, *folders: Path) -> dict[str, str]:
    """The environment of every Python process of the stack, before its marks.

    Args:
        settings: As `workers.stack.resolve` answered them.
        folders: Folders whose modules the process imports, besides what PYTHONPATH names.
    """
    return with_packages(_environment(settings), settings.state_dir, *folders)


def _environment(settings: Settings) -> dict[str, str]:
    """The variables of a process of this stack, which belongs to no other.

    The variables of the caller that concern Ray, Temporal and Turnpoint are left out.
    """
    prefixes = ("RAY_", "TEMPORAL_", ENV_PREFIX)
    env = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    env |= settings.environment()
    if settings.ray_address is not None:
        env |= ray_head.environment(settings.ray_address)
    if settings.temporal_address is not None:
        env["TEMPORAL_ADDRESS"] = settings.temporal_address
    else:
        env |= {name: os.environ[name] for name in os.environ if name.startswith("TEMPORAL_")}
    return env


def _policy(settings: Settings, port: int) -> tuple[list[str], dict[str, str]]:
    if settings.policy == "scripted":
        return [sys.executable, "-m", "rl.policies.scripted", "--port", str(port)], {}
    return vllm_command(settings.state_dir / MODEL_FOLDER, port, host=HOST)


def _gym(settings: Settings, server: GymServer, expect_restore: bool) -> Part:
    token = read_key_file(settings.token_file, "control_token")
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    folder = server.folder or settings.state_dir
    command, env = project_command(
        [*server.command, *_flags(settings, server.name)],
        _environment(settings)
        | gym_servers.environment(
            server,
            snapshot_root=settings.snapshots,
            token_file=settings.token_file,
            generation_url=f"http://{settings.generation_host}:{settings.generation_port}/v1",
            expect_restore=expect_restore,
        ),
        folder,
        settings.state_dir,
    )
    # A server without the control routes (an unmodified one) answers 404, and takes part too.
    return Part(
        name=server.name,
        command=command,
        env=env,
        folder=folder,
        is_ready=lambda log: _answers(f"{server.url}{BASE_PATH}/capabilities", headers, _NOT_FOUND),
        url=server.url,
    )


def _worker_is_ready(log: bytes) -> bool:
    return WORKER_READY in log


def _flags(settings: Settings, name: str) -> list[str]:
    options = settings.options.get(name, {})
    return [word for flag, value in options.items() for word in (f"--{flag}", value)]


def _answers(url: str, headers: dict[str, str] | None = None, *or_with: int) -> bool:
    try:
        answer = httpx.get(url, headers=headers, timeout=2, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.is_success or answer.status_code in or_with
