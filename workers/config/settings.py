"""Configuration of everything in `workers/` (design section 11).

A key comes from, first wins: a flag, the environment (`TURNPOINT_<KEY>`), for commands that
speak to a running stack its `stack.json`, then `turnpoint.toml` in the current folder. The
stack hands its processes the whole of it by environment. Secrets come from the environment or
from files of mode 0600, never from `turnpoint.toml`.

Guarantees: settings are frozen; an error names the key, its place and the values that are allowed,
never a value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError as SourceError
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from gym.protocol import SecretFileRefused
from gym.secret_file import read_secret_file
from rl.config import JobConfig, SaveSettings, SnapshotPlace
from workers.config.keys import Keys
from workers.config.origins import Places, not_json, require_known_variables, sentence_of
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


class Settings(Keys):
    """The keys of one job, and the configurations of its parts that follow from them."""

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

    def require_fleet(self) -> None:
        """Raise `NotRunning` unless a stack was started here or the settings name a fleet."""
        if not self.servers:  # the record of a stack has some
            raise no_stack(self.state_dir)

    def snapshot_place(self) -> SnapshotPlace:
        """The place of the job's snapshots, for commands that only read them.

        Raises:
            NotRunning: No stack was started here, and no other place is configured.
            SettingsError: The environment's snapshot key is not the one in the key's file.
        """
        if self.snapshot_root is None:
            self.require_fleet()
        return SnapshotPlace(
            job_id=self.job_id,
            snapshot_root=self.snapshots,
            snapshot_key_file=self._sealing_key_file(),
        )

    def _sealing_key_file(self) -> Path | None:
        """File of the snapshot key; one that is configured counts though it is missing."""
        path, given = self.key_file, self.snapshot_key
        if given is not None:
            try:
                held = read_secret_file(path, "snapshot_key").get_secret_value()
            except SecretFileRefused as error:
                raise self._key_differs(f"; {error}") from None
            if held != given.get_secret_value().strip():
                raise self._key_differs()
        return path if self.snapshot_key_file is not None or path.exists() else None

    def _key_differs(self, why: str = "") -> SettingsError:
        return SettingsError(
            f"snapshot_key: {self.key_file} does not hold the value of the environment variable "
            f"{ENV_PREFIX}SNAPSHOT_KEY, and that file alone is used; remove one of them "
            f"(`turnpoint up`, or `python -m workers.config.key_files`, makes the file){why}"
        )

    def job_config(self) -> JobConfig:
        """The configuration that every process of the job gets.

        Raises:
            NotRunning: No stack was started here, and no other fleet is configured.
            SettingsError: The configuration of another fleet lacks a key.
        """
        self.require_fleet()
        missing = [name for name in ("policy_url", "generation_port") if not getattr(self, name)]
        if missing:
            raise SettingsError(
                f"not set: {', '.join(missing)}. `turnpoint up` sets them for a local stack in "
                f"{self.state_dir}; for another fleet set {ENV_PREFIX}{missing[0].upper()}"
            )
        keys = dict(self)
        common = {name: keys[name] for name in JobConfig.model_fields.keys() & keys.keys()}
        return JobConfig.model_validate(
            {
                **common,
                **dict(self.snapshot_place()),
                "control_token_file": self.token_file,
                "servers": [server.as_named() for server in self.servers],
                "save": self.save_settings(),
            }
        )

    def save_settings(self) -> SaveSettings:
        """The configuration of one save."""
        return SaveSettings.model_validate(
            {name: getattr(self, name) for name in SaveSettings.model_fields}
        )

    def temporal_connection(self) -> ClientConnectConfig:
        """Arguments of `Client.connect`: the stack's own server, else the environment's.

        Raises:
            NotRunning: No stack was started here, and nothing else is configured.
            SettingsError: Temporal's own configuration cannot be read.
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
            self.require_fleet()
        connection.setdefault("target_host", "127.0.0.1:7233")
        return connection

    def environment(self) -> dict[str, str]:
        """Every key that is set, as the environment of a child; no secret is among them."""
        values = self.model_dump(mode="json", exclude=set(SECRETS), exclude_none=True)
        return {
            ENV_PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }


class _Attached(Settings):
    """Settings of a command that speaks to a running stack."""

    files = (StackFile, ConfigFile)


def load_settings(*, attach: bool = True, **flags: Any) -> Settings:
    """Read the configuration.

    Args:
        attach: Take what a running stack in `state_dir` was started with (all commands but
            `up`; a worker finds the same values in its environment).
        flags: Values from the command line; None means not given.

    Raises:
        SettingsError: A key is unknown or not allowed; the key is named and its place, its value
            is not.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    require_known_variables(Settings.model_fields)
    try:
        return (_Attached if attach else Settings)(**given)
    except ValidationError as error:
        places = Places(given, Settings, attach=attach)
        sentences = [sentence_of(item, places, Settings.model_fields) for item in error.errors()]
        raise SettingsError("; ".join(sentences)) from None
    except SourceError as error:
        raise SettingsError(not_json(error, Settings.model_fields)) from None
    except RecursionError:
        raise SettingsError(
            f"an environment variable {ENV_PREFIX}... is nested too deeply"
        ) from None
