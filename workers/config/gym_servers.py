"""The Gym servers of a job as a stack knows them: its own three, or those of `turnpoint.toml`.

A server with a `command` is a part of the stack: `up` starts it, `run` brings it back, `down` ends
it. The user starts a server without one: the stack waits for it, and `run` reports its silence.

The environment of every command has, besides the settings, the variables that
`gym.server.settings` reads, and those with this prefix that the caller of `up` has set:

| variable | value |
|---|---|
| `TURNPOINT_SERVER_NAME` | the server's name |
| `TURNPOINT_SERVER_HOST`, `TURNPOINT_SERVER_PORT` | where it listens: those of its `url` |
| `TURNPOINT_SERVER_SNAPSHOT_ROOT` | the folder below which it accepts checkpoint folders |
| `TURNPOINT_SERVER_CONTROL_TOKEN_FILE` | the file of the control routes' bearer token |
| `TURNPOINT_SERVER_EXPECT_RESTORE` | `true`: it awaits a restore |
| `TURNPOINT_SERVER_GENERATION_URL` | where a policy model server gets its completions |
| `PATH` | that of `up`, with this environment's programs first: `python` is its Python |
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from gym.protocol import Kind
from gym.protocol.records import ServerName
from gym.server.settings import ENV_PREFIX
from rl.config import ServerConfig, require_distinct

NOT_FOR_SERVERS = frozenset(
    {"temporal", "temporal_ui", "ray", "ray_client", "ray_agent", "ray_child"}
    | {"policy", "generation", "supervisor"}
)
"""Names of a stack's other processes, ports and logs."""
_WORKER = re.compile(r"worker_\d+")

MODEL, AGENT, RESOURCE = "policy_model", "simple_agent", "counter"
OWN = (MODEL, AGENT, RESOURCE)
"""The servers of a stack whose settings name none."""


def absolute(path: Path) -> Path:
    """A configured path, made independent of the current folder; `ValueError` if it is none."""
    if "\0" in str(path):
        raise ValueError("a path cannot hold a NUL character")
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"no home folder is known for {path.parts[0]}") from None


class GymServer(ServerConfig):
    """One Gym server, and how it is started."""

    command: list[Annotated[str, Field(min_length=1)]] = []
    """Program and arguments, no secret among them. Empty: the user starts the server."""
    folder: Path | None = None
    """Working folder of the command. Default: the current folder of `up`."""

    @field_validator("folder")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        return folder and absolute(folder)

    @model_validator(mode="after")
    def _can_be_started(self) -> GymServer:
        if not self.command:
            return self
        if self.name in NOT_FOR_SERVERS or _WORKER.fullmatch(self.name):
            raise ValueError(f"{self.name} is the name of another process of the stack")
        if urlsplit(self.url).port is None:
            raise ValueError("a server with a command needs a url with the port it listens on")
        return self

    @property
    def port(self) -> int:
        """The port of its URL; only a server with a command surely has one."""
        port = urlsplit(self.url).port
        assert port is not None  # _can_be_started
        return port

    def as_named(self) -> ServerConfig:
        """The server without its command, as the rest of the job knows it."""
        return ServerConfig(name=self.name, kind=self.kind, url=self.url)


def _listen_apart(servers: list[GymServer]) -> list[GymServer]:
    names: dict[int, str] = {}
    for server in [server for server in servers if server.command]:
        other = names.setdefault(server.port, server.name)
        if other != server.name:
            raise ValueError(f"{other} and {server.name} listen on one port, {server.port}")
    return servers


Servers = Annotated[
    list[GymServer], AfterValidator(require_distinct), AfterValidator(_listen_apart)
]


def own_servers(ports: Mapping[str, int], host: str, folder: Path) -> list[GymServer]:
    """The three servers that `up` brings along where the settings name none.

    Args:
        ports: The chosen ports by name.
        host: The address on which they listen.
        folder: Their working folder.
    """
    urls = {name: f"http://{host}:{ports[name]}" for name in OWN}
    run = ["python", "-m"]
    wired = ["--model-url", urls[MODEL], "--resource", f"{RESOURCE}={urls[RESOURCE]}"]
    commands: dict[str, tuple[Kind, list[str]]] = {
        MODEL: (Kind.MODEL, [*run, "gym.model.server"]),
        AGENT: (Kind.AGENT, [*run, "gym.agent.server", *wired]),
        RESOURCE: (Kind.RESOURCE, [*run, "gym.environments.counter"]),
    }
    return [
        GymServer(name=name, kind=kind, url=urls[name], command=command, folder=folder)
        for name, (kind, command) in commands.items()
    ]


def environment(
    server: GymServer,
    *,
    snapshot_root: Path,
    token_file: Path,
    generation_url: str,
    expect_restore: bool,
) -> dict[str, str]:
    """Variables of one server's command, besides the settings; see the table above."""
    values = {
        "NAME": server.name,
        "HOST": urlsplit(server.url).hostname or "",
        "PORT": str(server.port),
        "SNAPSHOT_ROOT": str(snapshot_root),
        "CONTROL_TOKEN_FILE": str(token_file),
        "EXPECT_RESTORE": str(expect_restore).lower(),
        "GENERATION_URL": generation_url,
    }
    given = {name: value for name, value in os.environ.items() if name.startswith(ENV_PREFIX)}
    given.pop(f"{ENV_PREFIX}CONTROL_TOKEN", None)  # the servers of a stack share its token file
    return {
        **given,
        **{f"{ENV_PREFIX}{name}": value for name, value in values.items()},
        "PATH": search_path(),
    }


def search_path() -> str:
    """The PATH of commands: this environment's programs first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def started(servers: list[GymServer]) -> frozenset[ServerName]:
    """Names of the servers that the stack starts."""
    return frozenset(server.name for server in servers if server.command)
