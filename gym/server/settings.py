"""Configuration of a Gym server: flags, then environment `TURNPOINT_SERVER_*`, then defaults.

Guarantees: an error names the key and hides its value; a credential is never printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from gym.protocol.records import ServerName
from gym.secret_file import read_secret_file

ENV_PREFIX = "TURNPOINT_SERVER_"
"""Prefix of a Gym server's variables; a server may add keys (`TURNPOINT_SERVER_MY_KEY`)."""


class ServerSettings(BaseSettings):
    """Settings that every Gym server has."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        frozen=True,
        hide_input_in_errors=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
    )

    name: ServerName
    """Name of the server in the job; its cookies and its folder are named after it."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(ge=1, le=65_535)
    """Port to listen on."""
    snapshot_root: Path
    """Checkpoint folders are accepted only below this one; absolute."""
    control_token: SecretStr | None = None
    """Bearer token of the control routes; better given as a file."""
    control_token_file: Path | None = None
    """File with the token; only its owner may read it (mode 0600)."""
    expect_restore: bool = False
    """Start in phase `awaiting_restore` instead of `closed`."""
    worker_processes: int = Field(default=1, ge=1, le=1)
    """State lives in one process: more than one is refused."""

    def token(self) -> SecretStr | None:
        """The control token, or None if none is configured.

        Raises:
            SecretFileRefused: The file is empty, or others may read it.
        """
        if self.control_token is not None and self.control_token.get_secret_value():
            return self.control_token
        if self.control_token_file is None:
            return None
        return read_secret_file(self.control_token_file, "control_token_file")


S = TypeVar("S", bound=ServerSettings)


def settings_from_command_line(kind: type[S], arguments: Sequence[str] | None = None) -> S:
    """Read settings of `kind` from flags and environment.

    Args:
        kind: `ServerSettings` or a subclass with a server's own keys.
        arguments: Flags, `sys.argv[1:]` by default. A key may have `-` or `_` between its words.

    Raises:
        SystemExit: Code 2: a flag or a variable does not fit. It is named on stderr with what is
            allowed; its value is not.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return kind(_cli_parse_args=[_kebab(flag) for flag in given])
    except ValidationError as error:
        for wrong in error.errors(include_url=False, include_input=False, include_context=False):
            key = _kebab("--" + ".".join(str(part) for part in wrong["loc"]))
            print(f"{key}: {wrong['msg']}; see --help", file=sys.stderr)
        raise SystemExit(2) from None


def _kebab(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value
