"""Every configuration key of a job and its stack, with its default.

Guarantees: the keys are frozen, unknown ones are refused, and no error shows a value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gym.protocol import Seconds
from gym.protocol.records import BaseUrl, ServerName
from rl.config import JobId
from workers.config.gym_servers import Servers, absolute
from workers.config.sources import CONFIG_FILE, ENV_PREFIX, ConfigFile

Port = Annotated[int, Field(ge=1, le=65_535)]


def _policy(value: str) -> str:
    if value in ("vllm", "scripted"):
        return value
    if not value.startswith(("http://", "https://")):
        raise ValueError("allowed: vllm, scripted, or the http(s) URL of an OpenAI-compatible vLLM")
    return TypeAdapter(BaseUrl).validate_python(value)


def _as_written(value: object) -> object:
    """A flag's value as a command line has it: TOML and JSON write numbers without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


FlagValue = Annotated[str, BeforeValidator(_as_written)]


class Keys(BaseSettings):
    """The keys. One without a default in the docs is chosen by `up`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        toml_file=CONFIG_FILE,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
    )
    files: ClassVar[tuple[type[PydanticBaseSettingsSource], ...]] = (ConfigFile,)
    """Sources after flags and environment; an earlier one wins."""

    job_id: JobId = "demo"
    state_dir: Path = Path(".turnpoint")
    """Folder of the local stack: `stack.json`, logs, keys, Temporal's SQLite file."""
    snapshot_root: Path | None = None
    """Snapshots lie in `<snapshot_root>/<job_id>`. Default: `<state_dir>/snapshots`."""

    control_token: SecretStr | None = None
    """Bearer token of the control routes; environment only."""
    control_token_file: Path | None = None
    """Default: `<state_dir>/control_token`, made by `up`."""
    snapshot_key: SecretStr | None = None
    """Key of the manifest's HMAC; environment only."""
    snapshot_key_file: Path | None = None
    """Default: `<state_dir>/snapshot_key`, made by `up`."""

    snapshot_attempt_interval_s: Seconds | None = None
    """Distance of scheduled saves. None: saving is off until set."""
    prepare_timeout_s: Seconds = 300
    commit_timeout_s: Seconds = 300
    cut_timeout_s: Seconds = 300
    publish_timeout_s: Seconds = 600
    restore_wait_s: Seconds = 120
    data_plane_timeout_s: Seconds = 20
    lease_s: Seconds = 30
    keep_latest_k: int = Field(default=2, ge=1)
    max_runs: int = Field(default=3, ge=1)
    storage_units: int = Field(default=1, ge=1)

    policy: Annotated[str, AfterValidator(_policy)] = "vllm"
    """`vllm` or `scripted` (started by the stack), or the base URL of one that runs."""
    policy_url: BaseUrl | None = None
    """Base URL ending in `/v1`; set by `up`."""
    policy_model: str = "policy"
    """Name under which the policy serves its model."""
    policy_sha256: str = ""
    """Identity of model and tokenizer for the topology check; set by `up` for its own."""

    servers: Servers = []
    """The job's Gym servers; where none is named `up` sets its own three."""
    generation_host: str = "127.0.0.1"
    """Address on which the generation endpoint listens: the Ray node of its actor."""
    generation_port: Port | None = None
    options: dict[ServerName, dict[str, FlagValue]] = {}
    """More flags of a stack process, by its name: `{"simple_agent": {"max-steps": "8"}}`."""

    temporal_address: str | None = None
    """Host and port of the stack's own Temporal; None: that of `temporalio.envconfig`."""
    temporal_ui: str | None = None
    ray_address: str | None = None
    """GCS address. Given to `up`: no Ray head is started."""
    ray_cpus: int = Field(default=16, ge=2)
    """CPUs that the stack's Ray head declares: TransferQueue claims one per actor."""
    workers: int = Field(default=2, ge=1, le=8)
    """Snapshot workers: with two, the death of one costs a save about 2 s."""

    port_base: Port = 26_000
    """Lowest port to try for a free one (below the range of outgoing connections)."""
    ports: dict[str, Port] = {}
    """Fixed ports by process name; one that is in use is an error."""
    ready_timeout_s: Seconds = 180
    """Longest wait for a process to get ready; vLLM takes 25 to 50 s on two cores."""

    @field_validator("state_dir", "snapshot_root", "control_token_file", "snapshot_key_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path and absolute(path)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, files."""
        return (init_settings, env_settings, *(source(settings_cls) for source in cls.files))
