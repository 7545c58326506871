"""What a local stack consists of: each process's command line, environment and ready check.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gym.protocol.control import BASE_PATH
from rl.policies.tiny_model import make_tiny_model
from rl.policies.vllm import POLICY_MODEL, vllm_command
from workers.config import gym_servers
from workers.config.gym_servers import NOT_FOR_SERVERS, GymServer
from workers.config.key_files import read_key_file
from workers.config.origins import nearest
from workers.config.settings import ENV_PREFIX, Settings
from workers.errors import SettingsError
from workers.stack import ray_head, temporal_server
from workers.stack.policy import base_url
from workers.stack.policy_defaults import flags_of
from workers.stack.ports import HOST

WORKER_PREFIX = "worker_"
WORKER_READY = '"event": "ready"'
MODEL_FOLDER = "model"
_NOT_FOUND = 404


@dataclass(frozen=True)
class Part:
    """One process of a stack."""

    name: str
    command: Sequence[str]
    is_ready: Callable[[bytes], bool]
    """Called with what the process has logged since its start; False: not yet."""
    env: dict[str, str] = field(default_factory=dict)
    """In addition to the stack's environment."""
    url: str | None = None
    after: frozenset[str] = frozenset()
    """Started only when these are ready."""
    folder: Path | None = None
    """Working folder; None: the stack's."""


def ports_needed(settings: Settings) -> list[str]:
    """Names of the ports that a stack of these settings listens on."""
    names = []
    if settings.temporal_address is None:
        names += ["temporal", "temporal_ui"]
    if settings.ray_address is None:
        names += ["ray", "ray_client", "ray_agent"]
    if not settings.policy.startswith("http"):
        names.append("policy")
    names += sorted(gym_servers.started(settings.servers)) if settings.servers else gym_servers.OWN
    if settings.generation_port is None or settings.ray_address is None:  # else another machine's
        names.append("generation")
    return names


def fixed_ports(settings: Settings) -> dict[str, int]:
    """The ports that the settings demand, by name: a server's is that of its URL."""
    fixed = {server.name: server.port for server in settings.servers if server.command}
    if settings.generation_port is not None:
        fixed["generation"] = settings.generation_port
    return settings.ports | fixed


def port_keys(settings: Settings) -> dict[str, str]:
    """The settings that demand ports, by name, where it is not `ports.<name>`."""
    urls = {server.name: f"url of {server.name}" for server in settings.servers if server.command}
    return {"generation": "generation_port", **urls}


def demand_known_names(settings: Settings) -> None:
    """Refuse ports and flags for a process that the stack has not: nobody would take them.

    Raises:
        SettingsError: The key is named, with the names that there are.
    """
    servers = [server.name for server in settings.servers] or gym_servers.OWN
    others = NOT_FOR_SERVERS - {"supervisor", "ray_child"}
    for key, given, known in (
        ("ports", settings.ports, {*servers, *others}),
        ("options", settings.options, {*servers, "policy"}),
    ):
        if unknown := sorted(given.keys() - known):
            raise SettingsError(
                f"{key}.{unknown[0]}: no such process{nearest(unknown[0], known)}; allowed: "
                f"{', '.join(sorted(known))}"
            )


def resolve(settings: Settings, ports: dict[str, int]) -> Settings:
    """The settings with everything that `up` decides: addresses, URLs, files.

    For the policy `vllm` the tiny model is made in the state folder, if it is not there.
    """
    found: dict[str, object] = {
        "ports": {name: port for name, port in settings.ports.items() if name in ports},
        "snapshot_root": settings.snapshots,
        "control_token_file": settings.token_file,
        "snapshot_key_file": settings.key_file,
        "generation_port": settings.generation_port or ports["generation"],
        "options": flags_of(settings.policy, settings.options, own_servers=not settings.servers),
    }
    if settings.temporal_address is None:
        found["temporal_address"] = f"{HOST}:{ports['temporal']}"
        found["temporal_ui"] = f"http://{HOST}:{ports['temporal_ui']}"
    if settings.ray_address is None:
        found["ray_address"] = f"{HOST}:{ports['ray']}"
    if settings.policy.startswith("http"):
        found["policy_url"] = base_url(settings.policy)
    else:
        found["policy_url"] = f"http://{HOST}:{ports['policy']}/v1"
        found["policy_model"] = POLICY_MODEL
    if settings.policy == "vllm" and not settings.policy_sha256:
        found["policy_sha256"] = make_tiny_model(settings.state_dir / MODEL_FOLDER)
    found["servers"] = [
        # Who starts it again may be elsewhere.
        server.model_copy(update={"folder": server.folder or Path.cwd()})
        for server in settings.servers
    ] or gym_servers.own_servers(ports, HOST, settings.state_dir)
    return settings.model_copy(update=found)


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of every process of the stack, before its marks.

    What the caller's environment says about Ray, Temporal and Turnpoint is left out: a child
    belongs to this stack alone.
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


def parts(
    settings: Settings, ports: dict[str, int], *, ray_folder: Path, expect_restore: bool
) -> list[Part]:
    """The processes of a stack, in the order in which they are started.

    Args:
        settings: As `resolve` answered them.
        ports: The chosen ports by name.
        ray_folder: Ray's temporary folder.
        expect_restore: Whether the Gym servers start awaiting a restore.
    """
    found = []
    if "temporal" in ports:
        found.append(_temporal(settings, ports))
    if "ray" in ports:
        found.append(_ray(settings, ports, ray_folder))
    if "policy" in ports:
        found.append(_policy(settings, ports["policy"]))
    found += [
        _gym(settings, server, expect_restore) for server in settings.servers if server.command
    ]
    needs = frozenset(part.name for part in found if part.name in ("temporal", "ray"))
    found += [_worker(f"{WORKER_PREFIX}{n}", needs) for n in range(1, settings.workers + 1)]
    return found


def _temporal(settings: Settings, ports: dict[str, int]) -> Part:
    address = f"{HOST}:{ports['temporal']}"
    return Part(
        name="temporal",
        command=temporal_server.command(
            ports["temporal"], ports["temporal_ui"], settings.state_dir
        ),
        is_ready=lambda log: temporal_server.is_ready(address),
        url=f"http://{HOST}:{ports['temporal_ui']}",
    )


def _ray(settings: Settings, ports: dict[str, int], folder: Path) -> Part:
    address = f"{HOST}:{ports['ray']}"
    return Part(
        name="ray",
        command=ray_head.command(
            ports["ray"],
            client_port=ports["ray_client"],
            agent_port=ports["ray_agent"],
            cpus=settings.ray_cpus,
            folder=folder,
        ),
        is_ready=lambda log: ray_head.is_ready(address),
        url=address,
    )


def _policy(settings: Settings, port: int) -> Part:
    base = f"http://{HOST}:{port}"
    if settings.policy == "scripted":
        command = [sys.executable, "-m", "rl.policies.scripted", "--port", str(port)]
        env: dict[str, str] = {}
    else:
        command, env = vllm_command(settings.state_dir / MODEL_FOLDER, port, host=HOST)
    return Part(
        name="policy",
        command=[*command, *_flags(settings, "policy")],
        env=env,
        is_ready=lambda log: _answers(f"{base}/v1/models"),
        url=f"{base}/v1",
    )


def _gym(settings: Settings, server: GymServer, expect_restore: bool) -> Part:
    token = read_key_file(settings.token_file, "control_token")
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    # A server without the control routes (an unmodified one) answers 404, and takes part too.
    return Part(
        name=server.name,
        command=[*server.command, *_flags(settings, server.name)],
        env=gym_servers.environment(
            server,
            snapshot_root=settings.snapshots,
            token_file=settings.token_file,
            generation_url=f"http://{settings.generation_host}:{settings.generation_port}/v1",
            expect_restore=expect_restore,
        ),
        is_ready=lambda log: _answers(f"{server.url}{BASE_PATH}/capabilities", headers, _NOT_FOUND),
        url=server.url,
        folder=server.folder,
    )


def _worker(name: str, after: frozenset[str]) -> Part:
    return Part(
        name=name,
        command=[sys.executable, "-m", "workers.worker"],
        is_ready=lambda log: WORKER_READY.encode() in log,
        after=after,
    )


def _flags(settings: Settings, name: str) -> list[str]:
    options = settings.options.get(name, {})
    return [word for flag, value in options.items() for word in (f"--{flag}", value)]


def _answers(url: str, headers: dict[str, str] | None = None, *or_with: int) -> bool:
    try:
        answer = httpx.get(url, headers=headers, timeout=2, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.is_success or answer.status_code in or_with
