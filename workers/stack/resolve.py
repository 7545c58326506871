"""The decisions of `up` before it starts a process: names, ports, addresses, URLs, files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl.policies.tiny_model import make_tiny_model
from rl.policies.vllm import POLICY_MODEL
from workers.config import gym_servers
from workers.config.gym_servers import NOT_FOR_SERVERS
from workers.config.origins import nearest
from workers.config.settings import Settings
from workers.errors import SettingsError
from workers.stack.policy import base_url, flags_of
from workers.stack.ports import HOST, Registry, choose
from workers.stack.process_specs import MODEL_FOLDER


def require_known_names(settings: Settings) -> None:
    """Refuse ports and flags for a process that the stack does not have: they would have no effect.

    Raises:
        SettingsError: The key is named, with the names that are allowed.
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


def choose_ports(settings: Settings, kept: Mapping[str, int], registry: Registry) -> dict[str, int]:
    """The ports of a stack by name: those that the settings demand, else kept or free ones.

    Args:
        settings: As they were given to `up`.
        kept: Ports of the last start.
        registry: The ports of other stacks.

    Raises:
        PortInUse: A fixed port is in use, or none is free.
    """
    urls = {server.name: f"url of {server.name}" for server in settings.servers if server.command}
    return choose(
        ports_needed(settings),
        fixed=fixed_ports(settings),
        keys={"generation": "generation_port", **urls},
        kept=kept,
        base=settings.port_base,
        others=registry.taken,
    )


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


def resolve(settings: Settings, ports: Mapping[str, int]) -> Settings:
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
        # The command that starts a server again may run in another folder.
        server.model_copy(update={"folder": server.folder or Path.cwd()})
        for server in settings.servers
    ] or gym_servers.own_servers(ports, HOST, settings.state_dir)
    return settings.model_copy(update=found)
