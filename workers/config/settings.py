"""Configuration of everything in `workers/` (design section 11).

A key comes from, first wins: a flag, the environment (`TURNPOINT_<KEY>`), for commands that
speak to a running stack its `stack.json`, then `turnpoint.toml` in the current folder. The
stack hands its processes the whole of it by environment. Secrets come from the environment or
from files of mode 0600, never from `turnpoint.toml`.

Guarantees: settings are frozen; an error names the key and what is allowed, never a value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SourceError
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from gym.protocol import Kind, Seconds
from gym.protocol.records import BaseUrl, ServerName
from rl.messages import JobConfig, JobId, SaveSettings, SnapshotPlace
from workers.config.gym_servers import GymServer, Servers, absolute
from workers.config.origins import Places, nearest, not_json, refuse_unknown_variables
from workers.config.sources import (
    CONFIG_FILE,
    ENV_PREFIX,
    SECRETS,
    STACK_FILE,
    ConfigFile,
    StackFile,
)
from workers.errors import SettingsError, no_stack

__all__ = ["CONFIG_FILE", "ENV_PREFIX", "SECRETS", "STACK_FILE", "Settings", "load_settings"]

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


class Settings(BaseSettings):
    """Every key, with its default. A field without a default in the docs is chosen by `up`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        toml_file=CONFIG_FILE,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
    )

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
    """Where the generation endpoint listens: the Ray node of its actor."""
    generation_port: Port | None = None
    options: dict[ServerName, dict[str, FlagValue]] = {}
    """More flags of a stack process, by its name: `{"simple_agent": {"max-steps": "8"}}`."""

    temporal_address: str | None = None
    """Host and port of the stack's own Temporal; None: whatever `temporalio.envconfig` says."""
    temporal_ui: str | None = None
    ray_address: str | None = None
    """GCS address. Given to `up`: no Ray head is started."""
    ray_cpus: int = Field(default=16, ge=2)
    """CPUs that the stack's Ray head declares: TransferQueue claims one per actor."""
    workers: int = Field(default=2, ge=1, le=8)
    """Snapshot workers: with two, the death of one costs a save about 2 s."""

    port_base: Port = 26_000
    """Free ports are looked for from here upward (below the range of outgoing connections)."""
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
        """Flags, environment, file."""
        return (init_settings, env_settings, ConfigFile(settings_cls))

    @property
    def snapshots(self) -> Path:
        """The snapshot root."""
        return self.snapshot_root or self.state_dir / "snapshots"

    @property
    def token_file(self) -> Path:
        """File of the control token."""
        return self.control_token_file or self.state_dir / "control_token"

    @property
    def key_file(self) -> Path:
        """File of the snapshot key."""
        return self.snapshot_key_file or self.state_dir / "snapshot_key"

    def save_settings(self) -> SaveSettings:
        """What holds for one save."""
        return SaveSettings.model_validate(
            {name: getattr(self, name) for name in SaveSettings.model_fields}
        )

    def demand_fleet(self) -> None:
        """Raise `NotRunning` unless a stack was started here or the settings name a fleet."""
        if not self.servers:  # the record of a stack has some
            raise no_stack(self.state_dir)

    def snapshot_place(self) -> SnapshotPlace:
        """Where the job's snapshots lie, for those who only read them.

        Raises:
            NotRunning: No stack was started here, and no other place is configured.
            SettingsError: The environment's snapshot key is not the one in the key's file.
        """
        if self.snapshot_root is None:
            self.demand_fleet()
        return SnapshotPlace(
            job_id=self.job_id,
            snapshot_root=self.snapshots,
            snapshot_key_file=self._seal_file(),
        )

    def _seal_file(self) -> Path | None:
        """File of the snapshot key; one that is configured counts though it is missing."""
        path, given = self.key_file, self.snapshot_key
        if given and not _holds(path, given.get_secret_value()):
            raise SettingsError(
                f"snapshot_key: {path} does not hold the value of the environment variable "
                f"{ENV_PREFIX}SNAPSHOT_KEY, and that file alone is used; remove one of them "
                "(`turnpoint up`, or `python -m workers.config.key_files`, makes the file)"
            )
        return path if self.snapshot_key_file is not None or path.exists() else None

    def job_config(self) -> JobConfig:
        """What every process of the job knows about it.

        Raises:
            NotRunning: No stack was started here, and no other fleet is configured.
            SettingsError: The configuration of another fleet lacks a key.
        """
        self.demand_fleet()
        missing = [name for name in ("policy_url", "generation_port") if not getattr(self, name)]
        if missing or self.policy_url is None or self.generation_port is None:
            raise SettingsError(
                f"not set: {', '.join(missing)}. `turnpoint up` sets them for a local stack in "
                f"{self.state_dir}; for another fleet set {ENV_PREFIX}{missing[0].upper()}"
            )
        return JobConfig(
            **dict(self.snapshot_place()),
            control_token_file=self.token_file,
            servers=[server.as_named() for server in self.servers],
            policy_url=self.policy_url,
            policy_model=self.policy_model,
            policy_sha256=self.policy_sha256,
            generation_host=self.generation_host,
            generation_port=self.generation_port,
            storage_units=self.storage_units,
            save=self.save_settings(),
            restore_wait_s=self.restore_wait_s,
            data_plane_timeout_s=self.data_plane_timeout_s,
            max_runs=self.max_runs,
        )

    def temporal_connection(self) -> ClientConnectConfig:
        """Arguments of `Client.connect`: the stack's own server, else the environment's.

        Raises:
            NotRunning: No stack was started here, and nothing else is configured.
            SettingsError: What the environment says cannot be read.
        """
        if self.temporal_address is not None:
            return ClientConnectConfig(target_host=self.temporal_address, namespace="default")
        try:
            connection = ClientConfig.load_client_connect_config()
        except (RuntimeError, OSError):  # the text may show a line of the file, its key perhaps
            raise SettingsError(
                "Temporal's own configuration cannot be read: look at the variables TEMPORAL_... "
                "(TEMPORAL_CONFIG_FILE, TEMPORAL_PROFILE, TEMPORAL_TLS_...) and the files they name"
            ) from None
        if "target_host" not in connection:
            self.demand_fleet()
        connection.setdefault("target_host", "127.0.0.1:7233")
        return connection

    def environment(self) -> dict[str, str]:
        """Every key that is set, as the environment of a child; no secret is among them."""
        values = self.model_dump(mode="json", exclude=set(SECRETS), exclude_none=True)
        return {
            ENV_PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }

    def server_url(self, kind: Kind) -> str:
        """URL of the first server of a kind.

        Raises:
            SettingsError: The settings name no such server.
        """
        for server in self.servers:
            if server.kind is kind:
                return server.url
        raise SettingsError(f"servers: no {kind} server is named")


class _Attached(Settings):
    """Settings of a command that speaks to a running stack."""

    stack_source: ClassVar[type[PydanticBaseSettingsSource]] = StackFile

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, the stack's record, file."""
        stack = cls.stack_source(settings_cls)
        return (init_settings, env_settings, stack, ConfigFile(settings_cls))


def load_settings(*, attach: bool = True, **flags: Any) -> Settings:
    """Read the configuration.

    Args:
        attach: Take what a running stack in `state_dir` was started with (all commands but
            `up`; a worker finds the same values in its environment).
        flags: Values from the command line; None means not given.

    Raises:
        SettingsError: A key is unknown or not allowed; the key is named and where it stands,
            its value is not.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    refuse_unknown_variables(Settings.model_fields)
    try:
        return (_Attached if attach else Settings)(**given)
    except ValidationError as error:
        places = Places(given, Settings, attach=attach)
        raise SettingsError("; ".join(_sentence(item, places) for item in error.errors())) from None
    except SourceError as error:
        raise SettingsError(not_json(error, Settings.model_fields)) from None
    except RecursionError:
        raise SettingsError(
            f"an environment variable {ENV_PREFIX}... is nested too deeply"
        ) from None


def _holds(path: Path, value: str) -> bool:
    try:
        return path.read_bytes().strip() == value.strip().encode()
    except OSError:
        return False


def _sentence(item: Any, places: Places) -> str:
    key = ".".join(str(part) for part in item["loc"])
    where = places.of(item["loc"])
    if item["type"] == "extra_forbidden":
        known = Settings.model_fields if len(item["loc"]) == 1 else GymServer.model_fields
        near = nearest(str(item["loc"][-1]), known)
        return f"{key}: no such key in {where}{near}; allowed: {', '.join(sorted(known))}"
    return f"{key}: {item['msg'].removeprefix('Value error, ')} ({where})"
