"""Configuration of a job, as every process of it gets it. Pure pydantic.

Guarantees: no credential is in it; files that hold one are named. Server names and URLs are
distinct.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gym.protocol import Kind, Seconds, Wire
from gym.protocol.records import BaseUrl, ServerName

JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class SaveSettings(Wire):
    """Settings of one save (design section 11)."""

    prepare_timeout_s: Seconds = 300
    commit_timeout_s: Seconds = 300
    cut_timeout_s: Seconds = 300
    publish_timeout_s: Seconds = 600
    lease_s: Seconds = 30
    keep_latest_k: int = Field(default=2, ge=1)


class ServerConfig(Wire):
    """One Gym server as the configuration names it."""

    name: ServerName
    kind: Kind
    url: BaseUrl


def require_distinct(servers: list[ServerConfig]) -> list[ServerConfig]:
    """The servers, each with a name of its own."""
    names = [server.name for server in servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two servers have the name {', '.join(twice)}; each needs its own")
    at: dict[str, list[str]] = {}
    for server in servers:
        at.setdefault(server.url.rstrip("/"), []).append(server.name)
    if shared := [" and ".join(names) for names in at.values() if len(names) > 1]:
        raise ValueError(f"one url under two names: {'; '.join(shared)}; each server has its own")
    return servers


Servers = Annotated[list[ServerConfig], AfterValidator(require_distinct)]
"""A server's name is its folder in a snapshot, and one server answers at a URL: no two of either
are the same."""


class SnapshotPlace(Wire):
    """The folder of a job's snapshots, and the key that their seals are checked with."""

    job_id: JobId
    snapshot_root: Path
    """Absolute; the job's snapshots lie in `<snapshot_root>/<job_id>`."""
    snapshot_key_file: Path | None = None
    """Key of the manifest's HMAC; without it only damage is promised to be found."""

    @property
    def job_folder(self) -> Path:
        """`<snapshot_root>/<job_id>`."""
        return self.snapshot_root / self.job_id


class JobConfig(SnapshotPlace):
    """Configuration that every process of a job has. Credentials are named by file."""

    control_token_file: Path
    servers: Servers
    policy_url: BaseUrl
    """Base URL of vLLM (or of the scripted policy), ending in `/v1`."""
    policy_model: str
    policy_sha256: str = ""
    """Identity of model and tokenizer, for the topology; empty if it is unknown."""
    generation_host: str = "127.0.0.1"
    generation_port: int = Field(ge=1, le=65_535)
    storage_units: int = Field(default=1, ge=1)
    save: SaveSettings = SaveSettings()
    restore_wait_s: Seconds = 120
    data_plane_timeout_s: Seconds = 20
    max_runs: int = Field(default=3, ge=1)


class Workload(Wire):
    """Dataset and size of a job. Saved in `rl/loader.json`; a restore takes it from there."""

    dataset: Path
    """Absolute path of a JSONL file of NeMo Gym rows."""
    generations: int = Field(default=2, ge=1)
    """Rollouts of each prompt."""
    epochs: int = Field(default=1, ge=1)
    max_inflight: int = Field(default=64, ge=1)
    """Rollouts under way at once."""
